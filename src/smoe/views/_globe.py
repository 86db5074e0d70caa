"""Globes: coastlines, fields and routing."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, QuadMesh
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from matplotlib.ticker import MaxNLocator

from smoe import _notebook
from smoe._notebook import coastlines
from smoe.diagnostics import expert_use, mean_where_served
from smoe.losses import latitude_weights
from smoe.views._drawing import draw_expert_use, save_picture, similarity_colours

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


_LAND, _SEA = "#9A7B4F", "#3B6FB6"
# Above this number the colours of experts cannot be distinguished; then similar regions have similar ones.
_MAX_NAMED = 12


def draw_globe_routing(
    chosen: np.ndarray,
    favourite: np.ndarray,
    num_experts: int,
    land: np.ndarray,
    latitude: Sequence[float] | np.ndarray,
    longitude: Sequence[float] | np.ndarray,
    path: str | Path,
    *,
    title: str,
) -> None:
    """Draw who serves where: all choices as colours, the first choices, each expert's share of land and its use.

    `chosen` are the experts of each pixel, in any order, `(E, H, W)`, `favourite` is the one with the highest score,
    `(H, W)`, of `num_experts` in the bank; `land` the share of land of each pixel, from 0 to 1, `(H, W)`.
    """
    # Area of a pixel of each row, relative to the mean.
    area = latitude_weights(latitude).numpy()[:, None]
    figure = Figure(figsize=(13.5, 6.9), layout="constrained")
    figure.suptitle(title, fontsize=14, fontweight="bold")
    layout = figure.add_gridspec(2, 2, height_ratios=[1.5, 1.0])

    axes = figure.add_subplot(layout[0, 0])
    draw_globe(axes, latitude, longitude, similarity_colours(chosen, num_experts, area))
    axes.set_title(f"all {len(chosen)} choices of each pixel: like colours share experts", fontsize=11, pad=6)

    axes = figure.add_subplot(layout[0, 1])
    used = np.unique(favourite)
    colours = _favourite_colours(favourite, used, area)
    palette, norm = ListedColormap(colours), Normalize(-0.5, len(used) - 0.5)
    mesh = draw_globe(axes, latitude, longitude, np.searchsorted(used, favourite), palette=palette, norm=norm)
    axes.set_title(f"first choice: {len(used)} of {num_experts} experts", fontsize=11, pad=6)
    if len(used) <= _MAX_NAMED:
        bar = figure.colorbar(mesh, ax=axes, location="right", shrink=0.8, ticks=range(len(used)))
        bar.ax.set_yticklabels([str(expert) for expert in used])
        bar.outline.set_visible(False)
        bar.set_label("expert")

    land_shares = mean_where_served(chosen, land, num_experts, area)
    _draw_land_shares(figure.add_subplot(layout[1, 0]), land_shares, float((area * land).mean()))
    draw_expert_use(figure.add_subplot(layout[1, 1]), expert_use(chosen, num_experts, area), of="globe")
    save_picture(figure, path)


def _favourite_colours(favourite: np.ndarray, used: np.ndarray, area: np.ndarray) -> list[tuple[float, ...]]:
    """Colours by mean latitude of an expert's pixels if there are many experts, otherwise distinct colours."""
    if len(used) <= _MAX_NAMED:
        palette = matplotlib.colormaps["tab20" if len(used) > 10 else "tab10"]
        return [palette(number) for number in range(len(used))]
    row = np.arange(favourite.shape[0])[:, None] * np.ones(favourite.shape)
    weight = area * np.ones(favourite.shape)
    mean_row = [np.average(row[favourite == expert], weights=weight[favourite == expert]) for expert in used]
    ranks = np.argsort(np.argsort(mean_row)) / (len(used) - 1)
    # Neighbours in rank would be hard to distinguish by hue alone: every second one is paler.
    palette = matplotlib.colormaps["turbo"]
    return [
        tuple(np.array(palette(rank)[:3]) * (0.62 if number % 2 else 1.0) + (0.38 if number % 2 else 0.0))
        for number, rank in enumerate(ranks)
    ]


def _draw_land_shares(axes: Axes, shares: np.ndarray, land_of_globe: float) -> None:
    ordered = np.sort(shares[np.isfinite(shares)])[::-1] * 100
    rank = np.arange(1, len(ordered) + 1)
    axes.bar(rank, ordered, 1.0, color=_LAND, linewidth=0, label="land")
    axes.bar(rank, 100 - ordered, 1.0, bottom=ordered, color=_SEA, linewidth=0, label="sea")
    axes.axhline(land_of_globe * 100, color="white", linestyle=(0, (4, 3)), linewidth=1.5)
    axes.text(0.01, land_of_globe + 0.02, "land of the globe", color="white", fontsize=8.5, transform=axes.transAxes)
    axes.set_ylim(0, 100)
    axes.set_xlim(0.5, len(ordered) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("rank of the expert, most land first")
    axes.set_ylabel("of the area it serves, in %")
    axes.set_title("land and sea of each expert", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
