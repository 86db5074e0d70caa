"""Draws confusion matrices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from smoe.views._charts import COLOURS, save_picture

# Above this number of classes the cells have no room for numbers, and the axes none for names.
_MAX_WRITTEN = 20


def draw_confusion(confusion: np.ndarray, classes: Sequence[str], path: str | Path, *, title: str) -> None:
    """Draw the confusion matrix, and the share of errors of each class.

    Args:
        confusion: Number of samples of each class (rows) that were classified as each class (columns), `(N, N)`.
        classes: Names of the N classes.
        path: Picture to write.
        title: Title of the picture.
    """
    num_classes = len(classes)
    if confusion.shape != (num_classes, num_classes) or confusion.sum() < 1:
        raise ValueError(f"confusion must count samples in ({num_classes}, {num_classes}), got {confusion.shape}")
    is_written = num_classes <= _MAX_WRITTEN
    figure = Figure(figsize=(12.5, 5.9) if is_written else (13.5, 7.5), layout="constrained")
    figure.suptitle(title, fontsize=13, fontweight="bold")
    layout = figure.add_gridspec(1, 2, width_ratios=[1.5, 1.0])

    axes = figure.add_subplot(layout[0, 0])
    mistakes = confusion.astype(np.float64)
    np.fill_diagonal(mistakes, np.nan)
    most = max(float(np.nanmax(mistakes)) if num_classes > 1 else 1.0, 2.0)
    # Correct ones are some hundred times as many and would leave one colour for all mistakes.
    shown = np.ma.masked_where(~(mistakes > 0), mistakes)
    image = axes.imshow(shown, cmap="YlOrRd", norm=LogNorm(1.0, most))
    if not is_written:
        figure.colorbar(image, ax=axes, shrink=0.8, label="mistakes")
    axes.set_xlabel("taken for")
    axes.set_ylabel("class")
    axes.set_title("what is taken for what (right ones in grey)", fontsize=11)
    if is_written:
        for (row, column), count in np.ndenumerate(confusion):
            if count:
                colour = "0.6" if row == column else "white" if np.log(count) > 0.6 * np.log(most) else "black"
                axes.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=8.5)
        axes.set_xticks(range(num_classes), list(classes), rotation=40, ha="right")
        axes.set_yticks(range(num_classes), list(classes))

    axes = figure.add_subplot(layout[0, 1])
    counts = confusion.sum(axis=1)
    errors = 100.0 * np.divide(counts - np.diag(confusion), counts, out=np.zeros(num_classes), where=counts > 0)
    overall = 100.0 * (1.0 - np.trace(confusion) / confusion.sum())
    axes.barh(range(num_classes), errors, color=COLOURS[0], height=0.75)
    axes.axvline(overall, color="0.35", linestyle=(0, (5, 3)), linewidth=1.3)
    axes.set_ylim(num_classes - 0.5, -0.5)
    if is_written:
        axes.set_yticks(range(num_classes), list(classes))
        for number, error in enumerate(errors):
            axes.text(error, number, f" {error:.2f}", va="center", fontsize=9)
        axes.margins(x=0.15)
    axes.set_xlabel("errors, in %")
    axes.set_title(f"errors of each class (of all images: {overall:.2f} %, dashed)", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    save_picture(figure, path)
