"""Pictures of routings; with the pictures of the experiments, the only modules that import matplotlib."""

from __future__ import annotations

from smoe.views._routing import plot_routing, save_picture

__all__ = ["plot_routing", "save_picture"]
