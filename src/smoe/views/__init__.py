"""Pictures of runs; the only part of the library that imports matplotlib."""

from __future__ import annotations

from smoe.views.comparison import draw_accuracies, draw_epochs, draw_region_accuracies
from smoe.views.curves import draw_accuracy
from smoe.views.grid import Panel, draw_grids
from smoe.views.heat import draw_routing, largest_deviation
from smoe.views.matching import agreement, matched_map, regions_of_experts

__all__ = [
    "Panel",
    "agreement",
    "draw_accuracies",
    "draw_accuracy",
    "draw_epochs",
    "draw_grids",
    "draw_region_accuracies",
    "draw_routing",
    "largest_deviation",
    "matched_map",
    "regions_of_experts",
]
