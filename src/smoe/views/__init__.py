"""Pictures of routings and maps; with the pictures of the experiments, the only modules that import matplotlib."""

from __future__ import annotations

from smoe.views._drawing import draw_expert_use, draw_nodes, save_picture, similarity_colours
from smoe.views._globe import coastlines, draw_globe
from smoe.views._routing import plot_routing

__all__ = [
    "coastlines",
    "draw_expert_use",
    "draw_globe",
    "draw_nodes",
    "plot_routing",
    "save_picture",
    "similarity_colours",
]
