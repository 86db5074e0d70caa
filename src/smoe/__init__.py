"""smoe: Spatial Mixture-of-Experts layers, which learn what to do where, for data on a grid.

The names below are loaded on first use: `import smoe` is cheap, silent, and imports nothing heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smoe import losses, metrics, nn, ops, rules
    from smoe.losses import auxiliary_loss
    from smoe.nn import (
        CondConv2d,
        ConvGate,
        CoordConv2d,
        CoordConv3Gate,
        CoordConvGate,
        FactorisedGate,
        FixedGate,
        LinearGate,
        LocalAffine,
        LocallyConnected2d,
        LocallyConnectedGate,
        LowRankLocal2d,
        NoisyGate,
        PixelEmbedding,
        SpatialGate,
        SpatialMoE,
        SpatialMoE2d,
        TensorGate,
        convert,
        interpolate_grids,
        plan_conversion,
        track_loss_scale,
    )
    from smoe.ops import Routing, routed_conv2d

__version__ = "0.1.0"

__all__ = [
    "CondConv2d",
    "ConvGate",
    "CoordConv2d",
    "CoordConv3Gate",
    "CoordConvGate",
    "FactorisedGate",
    "FixedGate",
    "LinearGate",
    "LocalAffine",
    "LocallyConnected2d",
    "LocallyConnectedGate",
    "LowRankLocal2d",
    "NoisyGate",
    "PixelEmbedding",
    "Routing",
    "SpatialGate",
    "SpatialMoE",
    "SpatialMoE2d",
    "TensorGate",
    "__version__",
    "auxiliary_loss",
    "convert",
    "interpolate_grids",
    "losses",
    "metrics",
    "nn",
    "ops",
    "plan_conversion",
    "routed_conv2d",
    "rules",
    "track_loss_scale",
]

_SUBMODULES = ("losses", "metrics", "nn", "ops", "rules")
_HOMES = {"auxiliary_loss": "smoe.losses", "Routing": "smoe.ops", "routed_conv2d": "smoe.ops"}


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        return importlib.import_module(f"smoe.{name}")
    if name in __all__:
        return getattr(importlib.import_module(_HOMES.get(name, "smoe.nn")), name)
    raise AttributeError(f"module 'smoe' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
