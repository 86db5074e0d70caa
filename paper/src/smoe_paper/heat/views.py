"""Draws what an SMoE learned about heat diffusion beside the truth (paper, figure of the learned routing)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize, to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from smoe.diagnostics import region_agreement, regions_of_experts
from smoe.views._charts import save_picture
from smoe_paper.heat.stencil_deviation import largest_deviation

RGB = tuple[float, float, float]

_REGION_COLOURS = ("#3B6FB6", "#F2B134", "#C8553D", "#4E9F6D", "#8E6BB0", "#6FB7C9", "#9C755F", "#E08FB3")
_UNUSED_COLOUR: RGB = (0.72, 0.72, 0.72)


def draw_routing(
    region_map: np.ndarray,
    stencils: np.ndarray,
    routing_map: np.ndarray,
    experts: np.ndarray,
    path: str | Path,
) -> None:
    """Draw the true regions and their stencils on the left, the learned routing and its experts on the right.

    An expert has the colour of the region in which most of its pixels lie; experts that share a region have shades
    of its colour, the most used one the darkest. Experts are listed by region; unused experts are last, in grey.

    Args:
        region_map: True region of each pixel, in [0, R), `(H, W)`.
        stencils: Stencil of each region, as a kernel of a cross-correlation, `(R, 3, 3)`.
        routing_map: Expert chosen at each pixel, in [0, X), `(H, W)`.
        experts: Kernel of each expert, k odd, `(X, k, k)`.
        path: Picture to write, for example a `.png`.
    """
    _check_kernels("stencils", stencils)
    _check_kernels("experts", experts)
    num_regions, num_experts = len(stencils), len(experts)
    regions = regions_of_experts(routing_map[None], region_map, num_experts)
    if region_map.max() >= num_regions:
        raise ValueError(f"region_map holds region {region_map.max()}, got {num_regions} stencils")

    region_colours = _colours_of_regions(num_regions)
    expert_colours, order = _colours_of_experts(routing_map, regions, region_colours)
    largest = max(float(np.abs(stencils).max()), float(np.abs(experts).max()))
    rows = max(3, math.ceil(math.sqrt(max(num_regions, num_experts))))
    columns = (math.ceil(num_regions / rows), math.ceil(num_experts / rows))

    map_width, kernel_width, height = 4.8, 1.65, 5.7
    widths = [map_width + kernel_width * count for count in columns]
    figure = Figure(figsize=(sum(widths), height), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08))
    halves = figure.add_gridspec(1, 2, width_ratios=widths)
    truth, learned = figure.add_subfigure(halves[0]), figure.add_subfigure(halves[1])

    truth.suptitle("True regions and stencils", fontsize=14, fontweight="bold")
    _draw_side(
        truth,
        region_map,
        region_colours,
        caption=f"{num_regions} regions on {region_map.shape[0]} x {region_map.shape[1]} pixels\n"
        "each pixel steps with the stencil of its region",
        kernels=list(stencils),
        titles=[f"region {region}" for region in range(num_regions)],
        colours=region_colours,
        grid=(rows, columns[0]),
        map_width=map_width / kernel_width,
        largest=largest,
    )
    learned.suptitle("Learned routing and experts", fontsize=14, fontweight="bold")
    _draw_side(
        learned,
        routing_map,
        expert_colours,
        caption=_summary(region_map, stencils, routing_map, experts, regions),
        kernels=[experts[expert] for expert in order],
        titles=[
            f"expert {expert} → region {regions[expert]}" if regions[expert] >= 0 else f"expert {expert}, unused"
            for expert in order
        ],
        colours=[expert_colours[expert] for expert in order],
        grid=(rows, columns[1]),
        map_width=map_width / kernel_width,
        largest=largest,
    )
    save_picture(figure, path)


def _summary(
    region_map: np.ndarray, stencils: np.ndarray, routing_map: np.ndarray, experts: np.ndarray, regions: np.ndarray
) -> str:
    fraction = region_agreement(routing_map[None], region_map, len(experts))
    # Rounded down, so that 100 % means all pixels.
    percent = math.floor(fraction * 1e4 + 1e-6) / 100 if fraction < 1 else 100
    num_different = round((1 - fraction) * region_map.size)
    return (
        f"agreement {percent:g} % (wrong: {num_different} of {region_map.size} pixels)\n"
        f"largest deviation from a stencil {largest_deviation(stencils, experts, regions):.1e}"
    )


def _colours_of_regions(num_regions: int) -> list[RGB]:
    if num_regions <= len(_REGION_COLOURS):
        return [to_rgb(colour) for colour in _REGION_COLOURS[:num_regions]]
    palette = matplotlib.colormaps["turbo"]
    return [to_rgb(palette(region / (num_regions - 1))) for region in range(num_regions)]


def _colours_of_experts(
    routing_map: np.ndarray, regions: np.ndarray, region_colours: Sequence[RGB]
) -> tuple[list[RGB], list[int]]:
    """Return the colour of each expert, and the experts in the order in which they are listed."""
    num_pixels = np.bincount(routing_map.ravel(), minlength=len(regions))
    colours = [_UNUSED_COLOUR] * len(regions)
    order: list[int] = []
    for region, colour in enumerate(region_colours):
        sharing = sorted(np.flatnonzero(regions == region).tolist(), key=lambda expert: (-num_pixels[expert], expert))
        for rank, expert in enumerate(sharing):
            whiteness = 0.65 * rank / max(len(sharing) - 1, 1)
            red, green, blue = (part + (1 - part) * whiteness for part in colour)
            colours[expert] = (red, green, blue)
        order += sharing
    return colours, order + np.flatnonzero(regions < 0).tolist()


def _draw_side(
    side: SubFigure,
    pixel_map: np.ndarray,
    map_colours: Sequence[RGB],
    *,
    caption: str,
    kernels: Sequence[np.ndarray],
    titles: Sequence[str],
    colours: Sequence[RGB],
    grid: tuple[int, int],
    map_width: float,
    largest: float,
) -> None:
    rows, columns = grid
    layout = side.add_gridspec(rows, 1 + columns, width_ratios=[map_width] + [1.0] * columns)
    axes = side.add_subplot(layout[:, 0])
    axes.imshow(
        pixel_map, cmap=ListedColormap(map_colours), vmin=-0.5, vmax=len(map_colours) - 0.5, interpolation="nearest"
    )
    axes.set_title(caption, fontsize=10.5, pad=6)
    axes.set_xticks([])
    axes.set_yticks([])
    for number, (kernel, title, colour) in enumerate(zip(kernels, titles, colours, strict=True)):
        # Down the columns, so that the first column of experts stands beside its regions.
        _draw_kernel(side.add_subplot(layout[number % rows, 1 + number // rows]), kernel, title, colour, largest, rows)


def _draw_kernel(axes: Axes, kernel: np.ndarray, title: str, colour: RGB, largest: float, rows: int) -> None:
    # Symmetric about zero: white is a weight of zero, whatever the signs in the bank.
    scale = Normalize(-largest, largest) if largest > 0 else Normalize(-1, 1)
    palette = matplotlib.colormaps["PuOr_r"]
    axes.imshow(kernel, cmap=palette, norm=scale, interpolation="nearest")
    size = kernel.shape[-1]
    decimals, font = (4, 7.0) if size <= 3 else (2, 22 / size)
    for (row, column), weight in np.ndenumerate(kernel):
        red, green, blue, _ = palette(scale(weight))
        is_dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        axes.text(
            column,
            row,
            # Adding 0.0 turns -0.0 into 0.0.
            f"{round(float(weight), decimals) + 0.0:.{decimals}f}",
            ha="center",
            va="center",
            fontsize=font * 3 / rows,
            color="white" if is_dark else "black",
        )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title, fontsize=9 * 3 / rows, pad=5)
    for spine in axes.spines.values():
        spine.set_color(colour)
        spine.set_linewidth(4)


def _check_kernels(name: str, kernels: np.ndarray) -> None:
    shape = kernels.shape
    if kernels.ndim != 3 or shape[0] < 1 or shape[1] != shape[2] or shape[1] % 2 == 0:
        raise ValueError(f"{name} must have shape (count, k, k) with k odd, got {shape}")
    if not np.isfinite(kernels).all():
        raise ValueError(f"{name} must be finite")
