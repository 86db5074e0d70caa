"""smoe: Spatial Mixture-of-Experts layers, which learn what to do where, for data on a grid.

The names below are loaded on first use: `import smoe` is cheap, silent, and imports nothing heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from smoe.version import __version__

if TYPE_CHECKING:
    from smoe import diagnostics, losses, nn, ops, rules
    from smoe.diagnostics import describe
    from smoe.gridded import read_mesh
    from smoe.nn import (
        DecidedGate,
        FactorisedGate,
        FixedGate,
        GraphMoE,
        HEALPixMoE,
        LocalAffine,
        PixelEmbedding,
        SpatialGate,
        SpatialMoE,
        SpatialMoE1d,
        SpatialMoE2d,
        SpatialMoE3d,
        TensorGate,
        convert,
        freeze,
        interpolate_grids,
        plan_conversion,
        transfer_gate,
    )
    from smoe.regression import GridRegressor, load
    from smoe.views import plot_routing


__all__ = [
    "DecidedGate",
    "FactorisedGate",
    "FixedGate",
    "GraphMoE",
    "GridRegressor",
    "HEALPixMoE",
    "LocalAffine",
    "PixelEmbedding",
    "SpatialGate",
    "SpatialMoE",
    "SpatialMoE1d",
    "SpatialMoE2d",
    "SpatialMoE3d",
    "TensorGate",
    "__version__",
    "convert",
    "describe",
    "diagnostics",
    "freeze",
    "interpolate_grids",
    "load",
    "losses",
    "nn",
    "ops",
    "plan_conversion",
    "plot_routing",
    "read_mesh",
    "rules",
    "transfer_gate",
]

_SUBMODULES = ("diagnostics", "losses", "nn", "ops", "rules")
_HOMES = {
    "describe": "smoe.diagnostics",
    "GridRegressor": "smoe.regression",
    "load": "smoe.regression",
    "plot_routing": "smoe.views",
    "read_mesh": "smoe.gridded",
}


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        return importlib.import_module(f"smoe.{name}")
    if name in __all__:
        from smoe.errors import naming_extras

        with naming_extras(f"smoe.{name}"):
            return getattr(importlib.import_module(_HOMES.get(name, "smoe.nn")), name)
    from smoe.errors import suggest

    raise AttributeError(f"module 'smoe' has no attribute {name!r}; {suggest(name, __all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
