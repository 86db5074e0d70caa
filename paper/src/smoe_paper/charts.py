"""Charts of the experiments: a score by epoch, and matrices of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from smoe.views import save_picture

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def draw_score(
    values: Mapping[int, float], title: str, path: Path, *, is_maximum: bool, reference: tuple[str, float] | None = None
) -> None:
    """Draw a score by epoch, the best one marked; the reference, with its name, is a dashed line."""
    figure = Figure(figsize=(5.0, 3.7), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(list(values), list(values.values()), color=COLOURS[0], marker="o" if len(values) <= 40 else "")
    best = (max if is_maximum else min)(values, key=values.__getitem__)
    axes.plot(best, values[best], marker="o", markersize=9, markerfacecolor="none", color="0.2", zorder=4)
    # Inside the frame at both ends.
    side = "left" if best == min(values) else "right" if best == max(values) else "center"
    axes.annotate(f"{values[best]:.4g}", (best, values[best]), (0, -17), textcoords="offset points", ha=side)
    if reference is not None:
        axes.axhline(reference[1], color="0.45", linestyle=(0, (5, 3)), linewidth=1.2, label=reference[0])
        axes.legend(frameon=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.06, y=0.16)
    axes.set_xlabel("epoch")
    axes.set_title(title, fontsize=11)
    axes.grid(axis="y", color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    save_picture(figure, path)


def show_numbers(
    axes: Axes,
    values: np.ndarray,
    palette: str,
    decimals: int,
    limits: tuple[float | None, float | None] = (None, None),
    fontsize: float = 10,
) -> None:
    """Show a matrix as colours with a number in each cell; NaN is left blank."""
    shown = np.ma.masked_invalid(values)
    image = axes.imshow(shown, cmap=palette, aspect="auto", vmin=limits[0], vmax=limits[1])
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            red, green, blue, _ = matplotlib.colormaps[palette](image.norm(value))
            colour = "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else "black"
            # Adding 0.0 turns -0.0 into 0.0.
            text = f"{round(float(value), decimals) + 0.0:.{decimals}f}"
            axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=fontsize)
