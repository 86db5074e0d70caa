"""Globes: coastlines and fields."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, QuadMesh
from matplotlib.colors import Normalize
from matplotlib.patches import Ellipse

from smoe import _notebook
from smoe._notebook import coastlines

# Pixels are drawn in parts, so that their borders follow the map's curves: a map has at least so many rows.
_MIN_ROWS = 128
_HALF_WIDTH, _HALF_HEIGHT = 2 * math.sqrt(2), math.sqrt(2)


def project(longitude: np.ndarray, latitude: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mollweide's projection of a sphere of radius 1.

    matplotlib's own axes of this name take ten seconds a map, for they bend each piece of coast in 75 parts.
    """
    x, y = _notebook.project(longitude, latitude)
    return _HALF_WIDTH * x, _HALF_HEIGHT * y


def draw_globe(
    axes: Axes,
    latitude: Sequence[float] | np.ndarray,
    longitude: Sequence[float] | np.ndarray,
    values: np.ndarray,
    *,
    palette: Any = "viridis",
    norm: Normalize | None = None,
) -> QuadMesh:
    """Draw values `(H, W)`, or colours `(H, W, 3)`, and the coastlines; the frame of the axes is removed.

    Latitudes of the rows may go in either direction; longitudes of the columns are regular and once round the globe,
    or refused.
    """
    latitude, longitude = np.asarray(latitude, dtype=np.float64), np.asarray(longitude, dtype=np.float64)
    if values.shape[:2] != (len(latitude), len(longitude)):
        raise ValueError(
            f"values of shape {values.shape[:2]} do not fit {len(latitude)} latitudes and {len(longitude)} longitudes"
        )
    if latitude[0] > latitude[-1]:
        latitude, values = latitude[::-1], values[::-1]
    rows = np.clip(_edges(latitude), -90.0, 90.0)
    columns, values = _from_date_line(longitude, values)
    parts = max(1, math.ceil(_MIN_ROWS / len(latitude)))
    x, y = project(_refine(columns, parts)[None, :], _refine(rows, parts)[:, None])
    colours = {} if values.ndim == 3 else {"cmap": palette, "norm": norm}
    fine = values.repeat(parts, axis=0).repeat(parts, axis=1)
    mesh = axes.pcolormesh(x, y, fine, shading="flat", rasterized=True, **colours)
    axes.add_collection(LineCollection(_projected_coastlines(), colors="black", linewidths=0.55, alpha=0.75))
    axes.add_patch(Ellipse((0, 0), 2 * _HALF_WIDTH, 2 * _HALF_HEIGHT, fill=False, linewidth=0.9))
    axes.set_xlim(-1.005 * _HALF_WIDTH, 1.005 * _HALF_WIDTH)
    axes.set_ylim(-1.01 * _HALF_HEIGHT, 1.01 * _HALF_HEIGHT)
    axes.set_aspect("equal")
    axes.set_axis_off()
    return mesh


@functools.cache
def _projected_coastlines() -> list[np.ndarray]:
    return [np.stack(project(line[:, 0], line[:, 1]), axis=1) for line in coastlines()]


def _edges(centres: np.ndarray) -> np.ndarray:
    middles = (centres[:-1] + centres[1:]) / 2
    return np.concatenate([[2 * centres[0] - middles[0]], middles, [2 * centres[-1] - middles[-1]]])


def _from_date_line(longitude: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Edges of the columns from -180 to 180 degrees and their values; a column across 180 is at both ends."""
    step = 360.0 / len(longitude)
    if len(longitude) < 2 or not np.allclose(np.diff(longitude), step, rtol=1e-3):
        raise ValueError(
            f"longitudes must be {step:g} degrees apart to go round the globe in {len(longitude)} columns, "
            f"got {longitude[0]:g}, {longitude[1 % len(longitude)]:g}, ..., {longitude[-1]:g}"
        )
    shifts = np.arange(-2, 3) * 360.0
    left = (longitude[None, :] - step / 2 + shifts[:, None]).ravel()
    column = np.tile(np.arange(len(longitude)), len(shifts))
    is_shown = (left + step > -180.0 + 1e-6) & (left < 180.0 - 1e-6)
    left, column = left[is_shown], column[is_shown]
    return np.clip(np.append(left, left[-1] + step), -180.0, 180.0), values[:, column]


def _refine(edges: np.ndarray, parts: int) -> np.ndarray:
    return np.interp(np.arange((len(edges) - 1) * parts + 1) / parts, np.arange(len(edges)), edges)
