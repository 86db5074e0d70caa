"""Data of the paper's experiments."""

from __future__ import annotations

from smoe.data.heat import (
    MAX_DIFFUSIVITY,
    HeatPairs,
    diffusion_stencil,
    draw_initial_states,
    load_frames,
    save_frames,
    simulate_heat,
)
from smoe.data.region_maps import count_region_types, grow_region_map, load_region_map

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
