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
    from smoe.losses import auxiliary_loss
    from smoe.meshes import read_mesh
    from smoe.nn import (
        CoarseGate,
        CondConv2d,
        ConvGate,
        CoordConv2d,
        CoordConv3Gate,
        CoordConvGate,
        DecidedGate,
        FactorisedGate,
        FixedGate,
        GraphMoE,
        HEALPixMoE,
        LinearGate,
        LocalAffine,
        LocallyConnected2d,
        LocallyConnectedGate,
        LowRankLocal2d,
        NoisyGate,
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
        node_gate,
        plan_conversion,
        shard,
        track_loss_scale,
        transfer_gate,
        unsharded,
    )
    from smoe.ops import Routing, routed_conv2d
    from smoe.ops._graph import edge_directions
    from smoe.regression import GridRegressor, load
    from smoe.views import plot_routing


__all__ = [
    "CoarseGate",
    "CondConv2d",
    "ConvGate",
    "CoordConv2d",
    "CoordConv3Gate",
    "CoordConvGate",
    "DecidedGate",
    "FactorisedGate",
    "FixedGate",
    "GraphMoE",
    "GridRegressor",
    "HEALPixMoE",
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
    "SpatialMoE1d",
    "SpatialMoE2d",
    "SpatialMoE3d",
    "TensorGate",
    "__version__",
    "auxiliary_loss",
    "convert",
    "describe",
    "diagnostics",
    "edge_directions",
    "freeze",
    "interpolate_grids",
    "load",
    "losses",
    "nn",
    "node_gate",
    "ops",
    "plan_conversion",
    "plot_routing",
    "read_mesh",
    "routed_conv2d",
    "rules",
    "shard",
    "track_loss_scale",
    "transfer_gate",
    "unsharded",
]

_SUBMODULES = ("diagnostics", "losses", "nn", "ops", "rules")
_HOMES = {
    "auxiliary_loss": "smoe.losses",
    "describe": "smoe.diagnostics",
    "GridRegressor": "smoe.regression",
    "load": "smoe.regression",
    "Routing": "smoe.ops",
    "edge_directions": "smoe.ops._graph",
    "plot_routing": "smoe.views",
    "read_mesh": "smoe.meshes",
    "routed_conv2d": "smoe.ops",
}


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        return importlib.import_module(f"smoe.{name}")
    if name in __all__:
        from smoe.errors import naming_extras

        with naming_extras(f"smoe.{name}"):
            return getattr(importlib.import_module(_HOMES.get(name, "smoe.nn")), name)
    raise AttributeError(f"module 'smoe' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
