"""What is to be said of the tables of ensembles and of their rows. Imports nothing."""

from __future__ import annotations

from collections import defaultdict

_SIMULATED = (
    "On the simulated ensemble every correction improves on the raw ensemble. With one year of 53 forecasts to "
    "learn from, EMOS with its few parameters is ahead of the U-Net. The SMoE row is the paper's rule (quantile "
    "0.7, damping 0.1), and loses: the damping is what costs (ens10/routing); undamped, or with a gate that never "
    "learns, the same net is ahead of the U-Net and level with EMOS."
)

# By a table's name, or by its name and a row's label.
NOTES: defaultdict[str | tuple[str, str], str] = defaultdict(
    str,
    {
        "ens10/t850": _SIMULATED,
        "ens10/z500": (
            "On the simulated ensemble, of few forecasts. The SMoE row is the paper's rule; what its damping costs is "
            "in ens10/routing."
        ),
        "ens10/routing": (
            "On the simulated ensemble the experts of the SMoE U-Net are worth it (U-Net: 0.623, "
            "EMOS: 0.584, see ens10/t850), but not the paper's damping, which loses all of the gain, nor a gate that "
            "the RC loss moves fast. RC without damping, which hardly moves the gate, is as good as a gate that never "
            "learns; so is probing."
        ),
    },
)
