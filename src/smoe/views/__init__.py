"""Pictures of runs; the only part of the library that imports matplotlib."""

from __future__ import annotations

from smoe.diagnostics.matching import agreement, matched_map, regions_of_experts
from smoe.diagnostics.shared_experts import selections, similarity_colours
from smoe.views.calibration import draw_calibration
from smoe.views.comparison import draw_accuracies, draw_epochs, draw_region_accuracies
from smoe.views.confusion import draw_confusion
from smoe.views.curves import draw_accuracy
from smoe.views.forecast_maps import ForecastMap, draw_forecast
from smoe.views.globe import coastlines, draw_globe
from smoe.views.grid import Panel, draw_grids
from smoe.views.heat import draw_routing, largest_deviation
from smoe.views.image_routing import draw_image_routing
from smoe.views.routing_globe import area_of_rows, draw_globe_routing, land_shares
from smoe.views.score_curves import draw_scores
from smoe.views.score_maps import draw_score_maps

__all__ = [
    "ForecastMap",
    "Panel",
    "agreement",
    "area_of_rows",
    "coastlines",
    "draw_accuracies",
    "draw_accuracy",
    "draw_calibration",
    "draw_confusion",
    "draw_epochs",
    "draw_forecast",
    "draw_globe",
    "draw_globe_routing",
    "draw_grids",
    "draw_image_routing",
    "draw_region_accuracies",
    "draw_routing",
    "draw_score_maps",
    "draw_scores",
    "land_shares",
    "largest_deviation",
    "matched_map",
    "regions_of_experts",
    "selections",
    "similarity_colours",
]
