"""Published scores on ENS-10, 2016-2017, as data: the paper's table of ensemble post-processing. Imports nothing."""

from __future__ import annotations

from smoe_paper.experiments.published import PublishedResult

MEMBERS = (5, 10)
_TABLE = "Table 5"

# By recipe and score: mean and spread of Z500 in m2 s-2, T850 and T2m in K, each with 5 and with 10 members.
_PRINTED = {
    ("ens10/emos", "crps"): {
        "z500": ((79.12, 0.12), (78.80, 0.21)),
        "t850": ((0.721, 0.01), (0.706, 0.04)),
        "t2m": ((0.720, 0.00), (0.711, 0.03)),
    },
    ("ens10/unet", "crps"): {
        "z500": ((76.54, 0.20), (76.18, 0.12)),
        "t850": ((0.685, 0.00), (0.670, 0.01)),
        "t2m": ((0.657, 0.01), (0.644, 0.01)),
    },
    ("ens10/smoe", "crps"): {
        "z500": ((68.94, 0.14), (67.43, 0.12)),
        "t850": ((0.612, 0.01), (0.590, 0.02)),
        "t2m": ((0.601, 0.02), (0.594, 0.02)),
    },
    ("ens10/emos", "eecrps"): {
        "z500": ((29.21, 0.18), (29.02, 0.13)),
        "t850": ((0.247, 0.00), (0.245, 0.02)),
        "t2m": ((0.244, 0.00), (0.241, 0.02)),
    },
    ("ens10/unet", "eecrps"): {
        "z500": ((27.78, 0.11), (27.55, 0.19)),
        "t850": ((0.230, 0.01), (0.229, 0.01)),
        "t2m": ((0.225, 0.00), (0.220, 0.01)),
    },
    ("ens10/smoe", "eecrps"): {
        "z500": ((23.79, 0.20), (23.10, 0.16)),
        "t850": ((0.207, 0.03), (0.197, 0.03)),
        "t2m": ((0.199, 0.01), (0.190, 0.02)),
    },
}


def paper_results(recipe: str, task: str, members: int) -> tuple[PublishedResult, ...]:
    """Returns the CRPS and EECRPS that the paper prints for a model, a variable and a number of members."""
    results: list[PublishedResult] = []
    for metric in ("crps", "eecrps"):
        mean, spread = _PRINTED[recipe, metric][task][MEMBERS.index(members)]
        results.append(PublishedResult(metric, mean, spread, None, _TABLE))
    return tuple(results)
