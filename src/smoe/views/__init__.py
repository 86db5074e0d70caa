"""Pictures of routings and maps; with the pictures of the experiments, the only modules that import matplotlib."""

from __future__ import annotations

from smoe.views._drawing import draw_expert_use, save_picture
from smoe.views._routing import plot_routing

__all__ = [
    "draw_expert_use",
    "plot_routing",
    "save_picture",
]
