"""Which experts serve which part of the globe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from smoe.diagnostics.shared_experts import selections, similarity_colours
from smoe.views.globe import draw_globe
from smoe.views.picture import save_picture

_LAND, _SEA, _GREY = "#9A7B4F", "#3B6FB6", "0.35"
# Above this number nobody can tell the colours of experts by name; then those of like regions have like colours.
_MAX_NAMED = 12


def area_of_rows(latitude: Sequence[float] | np.ndarray) -> np.ndarray:
    """Share of the globe of one pixel of each row, such that a column adds up to 1, `(H,)`."""
    cosine = np.cos(np.deg2rad(np.asarray(latitude, dtype=np.float64)))
    return cosine / cosine.sum()


def land_shares(is_selected: np.ndarray, land: np.ndarray, latitude: Sequence[float] | np.ndarray) -> np.ndarray:
    """Share of land in the area that each expert serves; NaN for one that serves nothing.

    Args:
        is_selected: `(X, H, W)` bool.
        land: Share of land of each pixel, from 0 to 1, `(H, W)`.
        latitude: Of the rows, in degrees, `(H,)`.

    Returns:
        `(X,)`.
    """
    area = is_selected * area_of_rows(latitude)[:, None]
    total = area.sum((1, 2))
    return np.divide((area * land).sum((1, 2)), total, out=np.full(len(total), np.nan), where=total > 0)


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
    """Draw who serves where: all choices as colours, the first choices, each expert's share of land and of the globe.

    Args:
        chosen: Experts chosen at each pixel, in any order, `(E, H, W)`.
        favourite: The one with the highest score, `(H, W)`.
        num_experts: X.
        land: Share of land of each pixel, from 0 to 1, `(H, W)`.
        latitude: Of the rows, in degrees, `(H,)`.
        longitude: Of the columns, in degrees, `(W,)`.
        path: Picture to write.
        title: Above everything, such as the layers that the gate serves.
    """
    is_selected = selections(chosen, num_experts)
    area = area_of_rows(latitude)
    figure = Figure(figsize=(13.5, 6.9), layout="constrained")
    figure.suptitle(title, fontsize=14, fontweight="bold")
    layout = figure.add_gridspec(2, 2, height_ratios=[1.5, 1.0])

    axes = figure.add_subplot(layout[0, 0])
    draw_globe(axes, latitude, longitude, similarity_colours(is_selected, area))
    axes.set_title(f"all {len(chosen)} choices of each pixel: like colours share experts", fontsize=11, pad=6)

    axes = figure.add_subplot(layout[0, 1])
    used = np.unique(favourite)
    colours = _favourite_colours(favourite, used, area)
    mesh = draw_globe(
        axes,
        latitude,
        longitude,
        np.searchsorted(used, favourite),
        palette=ListedColormap(colours),
        norm=Normalize(-0.5, len(used) - 0.5),
    )
    axes.set_title(f"first choice: {len(used)} of {num_experts} experts", fontsize=11, pad=6)
    if len(used) <= _MAX_NAMED:
        bar = figure.colorbar(mesh, ax=axes, location="right", shrink=0.8, ticks=range(len(used)))
        bar.ax.set_yticklabels([str(expert) for expert in used])
        bar.outline.set_visible(False)
        bar.set_label("expert")

    land_of_globe = float((area @ land).mean())
    _draw_land_shares(figure.add_subplot(layout[1, 0]), land_shares(is_selected, land, latitude), land_of_globe)
    served = np.einsum("xhw,h->x", is_selected, area) / is_selected.shape[2]
    _draw_loads(figure.add_subplot(layout[1, 1]), served, len(chosen) / num_experts)
    save_picture(figure, path)


def _favourite_colours(favourite: np.ndarray, used: np.ndarray, area: np.ndarray) -> list[tuple[float, ...]]:
    """By the mean latitude of an expert's pixels if there are many of them, else told apart."""
    if len(used) <= _MAX_NAMED:
        palette = matplotlib.colormaps["tab20" if len(used) > 10 else "tab10"]
        return [palette(number) for number in range(len(used))]
    row = np.arange(favourite.shape[0])[:, None] * np.ones(favourite.shape)
    weight = area[:, None] * np.ones(favourite.shape)
    mean_row = [np.average(row[favourite == expert], weights=weight[favourite == expert]) for expert in used]
    ranks = np.argsort(np.argsort(mean_row)) / (len(used) - 1)
    # Neighbours in rank would be hard to tell apart by hue alone: every other one is paler.
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


def _draw_loads(axes: Axes, served: np.ndarray, even: float) -> None:
    ordered = np.sort(served)[::-1] * 100
    axes.bar(np.arange(1, len(ordered) + 1), ordered, 1.0, color="#4E9F6D", linewidth=0)
    axes.axhline(even * 100, color=_GREY, linestyle=(0, (4, 3)), linewidth=1.2, label="if all were served alike")
    axes.set_xlim(0.5, len(ordered) + 0.5)
    axes.set_ylim(0, 103)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("rank of the expert, busiest first")
    axes.set_ylabel("of the globe, in %")
    axes.set_title(f"area served by each expert ({int((served > 0).sum())} of {len(served)} in use)", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right")
