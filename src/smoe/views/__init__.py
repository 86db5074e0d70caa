"""Pictures that any experiment can use; with the experiments' own `views`, the only modules that import matplotlib."""

from __future__ import annotations

from smoe.views.comparison import draw_accuracies, draw_epochs, draw_region_accuracies
from smoe.views.curves import draw_accuracy, draw_scores
from smoe.views.expert_use import draw_expert_use
from smoe.views.globe import coastlines, draw_globe
from smoe.views.grid import Panel, draw_grids
from smoe.views.image_routing import draw_image_routing
from smoe.views.mesh_routing import plot_mesh_routing
from smoe.views.routing import plot_routing
from smoe.views.routing_globe import draw_globe_routing
from smoe.views.similarity_colours import similarity_colours

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
