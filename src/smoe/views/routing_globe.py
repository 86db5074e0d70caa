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

from smoe.diagnostics import expert_use, mean_where_served
from smoe.losses.latitude_weighted import latitude_weights
from smoe.views.expert_use import draw_expert_use
from smoe.views.globe import draw_globe
from smoe.views.picture import save_picture
from smoe.views.similarity_colours import similarity_colours

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
    """Draws who serves where: all choices as colours, the first choices, each expert's share of land and its use.

    Args:
        chosen: Experts chosen at each pixel, in any order, `(E, H, W)`.
        favourite: Expert with the highest score at each pixel, `(H, W)`.
        num_experts: Number of experts in the bank, X.
        land: Share of land of each pixel, from 0 to 1, `(H, W)`.
        latitude: Latitudes of the rows, in degrees, `(H,)`.
        longitude: Longitudes of the columns, in degrees, `(W,)`.
        path: Picture to write.
        title: Title of the picture, such as the layers of the gate.
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
