"""Draws fields on a map of the globe."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, QuadMesh
from matplotlib.patches import Ellipse

from smoe._notebook import coastlines, project


def draw_globe(axes: Axes, latitude: np.ndarray, longitude: np.ndarray, values: np.ndarray, **style: Any) -> QuadMesh:
    """Values `(H, W)` of rows and of regular columns once round the globe, in Mollweide's projection with coastlines.

    matplotlib's own axes of this name take ten seconds a map, for they bend each piece of coast in 75 parts.
    """
    step = 360.0 / len(longitude)
    east = (longitude + 180.0) % 360.0 - 180.0
    order = np.argsort(east)
    # The first column again at the other end: what is beyond 180 degrees on either side is cut off.
    columns = np.append(east[order], east[order[0]] + 360.0) - step / 2
    rows = np.interp(np.arange(len(latitude) + 1) - 0.5, np.arange(len(latitude)), latitude)
    rows[[0, -1]] = latitude[[0, -1]] + np.diff(latitude)[[0, -1]] / (-2, 2)
    x, y = project(np.append(columns, columns[-1] + step)[None, :], np.clip(rows, -90.0, 90.0)[:, None])
    mesh = axes.pcolormesh(2 * x, y, values[:, [*order, order[0]]], shading="flat", rasterized=True, **style)
    mesh.set_clip_path(axes.add_patch(Ellipse((0, 0), 4, 2, fill=False, linewidth=0.9)))
    lines = [np.stack(project(*line.T), axis=1) * (2, 1) for line in coastlines()]
    axes.add_collection(LineCollection(lines, colors="black", linewidths=0.55, alpha=0.75))
    axes.set(xlim=(-2.01, 2.01), ylim=(-1.01, 1.01), aspect="equal")
    axes.set_axis_off()
    return mesh
