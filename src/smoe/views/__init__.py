"""Pictures that any experiment can use; with the experiments' own `views`, the only modules that import matplotlib."""

from __future__ import annotations

from smoe.views._charts import (
    Panel,
    draw_accuracies,
    draw_accuracy,
    draw_epochs,
    draw_expert_use,
    draw_grids,
    draw_region_accuracies,
    draw_scores,
)
from smoe.views._globe import coastlines, draw_globe, draw_globe_routing
from smoe.views._node_routing import plot_mesh_routing, similarity_colours
from smoe.views._routing import draw_image_routing, plot_routing

__all__ = [
    "Panel",
    "coastlines",
    "draw_accuracies",
    "draw_accuracy",
    "draw_epochs",
    "draw_expert_use",
    "draw_globe",
    "draw_globe_routing",
    "draw_grids",
    "draw_image_routing",
    "draw_region_accuracies",
    "draw_scores",
    "plot_mesh_routing",
    "plot_routing",
    "similarity_colours",
]
