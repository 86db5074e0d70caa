"""Data of the heat experiment: simulated diffusion on maps of regions. The names below are loaded on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smoe_paper.heat.data.diffusion import (
        MAX_DIFFUSIVITY,
        HeatPairs,
        diffusion_stencil,
        draw_initial_states,
        load_frames,
        save_frames,
        simulate_heat,
    )
    from smoe_paper.heat.data.region_maps import count_region_types, grow_region_map, load_region_map

__all__ = [
    "MAX_DIFFUSIVITY",
    "HeatPairs",
    "count_region_types",
    "diffusion_stencil",
    "draw_initial_states",
    "grow_region_map",
    "load_frames",
    "load_region_map",
    "save_frames",
    "simulate_heat",
]

_REGION_MAPS = ("count_region_types", "grow_region_map", "load_region_map")


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'smoe_paper.heat.data' has no attribute {name!r}")
    home = "smoe_paper.heat.data.region_maps" if name in _REGION_MAPS else "smoe_paper.heat.data.diffusion"
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
