"""Pictures of runs; the only part of the library that imports matplotlib."""

from __future__ import annotations

from smoe.views.curves import draw_accuracy
from smoe.views.heat import draw_routing, largest_deviation
from smoe.views.matching import agreement, matched_map, regions_of_experts

__all__ = ["agreement", "draw_accuracy", "draw_routing", "largest_deviation", "matched_map", "regions_of_experts"]
