"""A table of numbers as colours: a result for each pair of two settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from smoe.views.picture import save_picture


@dataclass(frozen=True)
class Panel:
    """One picture of numbers.

    Attributes:
        title: Title of the panel.
        values: Values of the cells, `(rows, columns)`; NaN is left blank.
        decimals: Number of decimals in the cells.
        palette: Name of a matplotlib colour map.
    """

    title: str
    values: np.ndarray
    decimals: int = 1
    palette: str = "viridis"


def draw_grids(
    panels: Sequence[Panel],
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    path: str | Path,
    *,
    row_title: str,
    column_title: str,
) -> None:
    """Draw panels over the same two settings side by side.

    Args:
        panels: Panels to draw, at least one.
        row_labels: Values of the first setting.
        column_labels: Values of the second setting.
        path: Picture to write.
        row_title: Name of the first setting.
        column_title: Name of the second setting.

    Raises:
        ValueError: If there is no panel, or one does not fit the labels.
    """
    if not panels:
        raise ValueError("there must be at least one panel")
    shape = (len(row_labels), len(column_labels))
    # Room for a number in each cell.
    width = max(4.2, 1.6 + 0.55 * shape[1])
    figure = Figure(figsize=(width * len(panels), 1.4 + 0.4 * shape[0]), layout="constrained")
    are_long = any(len(label) > 6 for label in column_labels)
    for number, panel in enumerate(panels):
        if panel.values.shape != shape:
            raise ValueError(f"{panel.title!r} has the shape {panel.values.shape}, but the labels make {shape}")
        axes = figure.add_subplot(1, len(panels), number + 1)
        shown = np.ma.masked_invalid(panel.values)
        image = axes.imshow(shown, cmap=panel.palette, aspect="auto")
        for (row, column), value in np.ndenumerate(panel.values):
            if np.isfinite(value):
                red, green, blue, _ = matplotlib.colormaps[panel.palette](image.norm(value))
                is_dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
                text = f"{value:.{panel.decimals}f}"
                axes.text(column, row, text, ha="center", va="center", color="white" if is_dark else "black")
        axes.set_xticks(range(shape[1]), list(column_labels))
        if are_long:
            axes.tick_params(axis="x", rotation=40)
        axes.set_yticks(range(shape[0]), list(row_labels))
        axes.set_xlabel(column_title)
        axes.set_ylabel(row_title)
        axes.set_title(panel.title, fontsize=10.5)
    save_picture(figure, path)
