"""Charts of the experiments: grids of numbers, curves, scores and accuracies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from smoe.views import save_picture

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_LINES = ("-", (0, (5, 2)), (0, (1, 1.5)))


@dataclass(frozen=True)
class Panel:
    """One picture of numbers.

    Attributes:
        values: Values of the cells, `(rows, columns)`; NaN is left blank.
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
    """Draw panels over the same two settings side by side."""
    shape = (len(row_labels), len(column_labels))
    # Room for a number in each cell.
    width = max(4.2, 1.6 + 0.55 * shape[1])
    figure = Figure(figsize=(width * len(panels), 1.4 + 0.4 * shape[0]), layout="constrained")
    are_long = any(len(label) > 6 for label in column_labels)
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), number + 1)
        show_numbers(axes, panel.values, panel.palette, panel.decimals)
        axes.set_xticks(range(shape[1]), list(column_labels))
        if are_long:
            axes.tick_params(axis="x", rotation=40)
        axes.set_yticks(range(shape[0]), list(row_labels))
        axes.set_xlabel(column_title)
        axes.set_ylabel(row_title)
        axes.set_title(panel.title, fontsize=10.5)
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


def draw_scores(
    history: Sequence[Mapping[str, float | None]],
    keys: Mapping[str, str],
    path: str | Path,
    *,
    reference: tuple[str, float] | None = None,
    is_maximum: bool = False,
) -> None:
    """Draw scores by epoch, each with an axis of its own, the best epoch marked; the reference is a dashed line."""
    figure = Figure(figsize=(0.6 + 4.4 * len(keys), 3.7), layout="constrained")
    for number, (key, title) in enumerate(keys.items()):
        epochs, values = _points(history, key)
        colour = COLOURS[number % len(COLOURS)]
        axes = figure.add_subplot(1, len(keys), number + 1)
        axes.plot(epochs, values, color=colour, marker="o", markersize=4 if len(values) <= 40 else 0, linewidth=1.9)
        best = (max if is_maximum else min)(range(len(values)), key=values.__getitem__)
        axes.plot(epochs[best], values[best], marker="o", markersize=9, markerfacecolor="none", color="0.2", zorder=4)
        axes.annotate(
            f"{values[best]:.4g}",
            (epochs[best], values[best]),
            xytext=(0, -17),
            textcoords="offset points",
            # Inside the frame at both ends.
            ha="left" if best == 0 else "right" if best == len(values) - 1 else "center",
        )
        if reference is not None and number == 0:
            axes.axhline(reference[1], color="0.45", linestyle=(0, (5, 3)), linewidth=1.2, label=reference[0])
            axes.legend(frameon=False)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.margins(x=0.06, y=0.16)
        axes.set_xlabel("epoch")
        axes.set_title(title, fontsize=11)
        axes.grid(axis="y", color="0.9")
        axes.spines[["top", "right"]].set_visible(False)
    save_picture(figure, path)


def _points(history: Sequence[Mapping[str, float | None]], key: str) -> tuple[list[int], list[float]]:
    """Epochs that have a value of the key, from 1, and the values."""
    found = {epoch: value for epoch, entry in enumerate(history, start=1) if (value := entry.get(key)) is not None}
    return list(found), list(found.values())


def draw_accuracies(
    curves: Mapping[str, Sequence[float]],
    path: str | Path,
    *,
    label: str,
    epoch_lengths: Mapping[str, float] | None = None,
    unit: str = "epoch",
) -> None:
    """Draw the accuracy in percent of several models by epoch, the epochs on a logarithmic axis."""
    figure = Figure(figsize=(8.0, 4.8), layout="constrained")
    axes = figure.add_subplot()
    _plot(axes, curves, epoch_lengths or {})
    axes.set_xscale("log")
    axes.set_ylim(0, 101)
    axes.set_xlabel(unit)
    axes.set_ylabel(label)
    save_picture(figure, path)


def draw_epochs(panels: Mapping[str, Mapping[str, Sequence[float]]], path: str | Path) -> None:
    """Draw quantities of several models by epoch, one below the other."""
    figure = Figure(figsize=(8.5, 0.6 + 3.0 * len(panels)), layout="constrained")
    all_axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    for number, (axes, (quantity, curves)) in enumerate(zip(all_axes, panels.items(), strict=True)):
        _plot(axes, curves, {}, has_legend=number == 0)
        axes.set_ylabel(quantity)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    all_axes[-1].set_xlabel("epoch")
    save_picture(figure, path)


def _plot(
    axes: Axes, curves: Mapping[str, Sequence[float]], epoch_lengths: Mapping[str, float], *, has_legend: bool = True
) -> None:
    for number, (label, values) in enumerate(curves.items()):
        axes.plot(
            np.arange(1, len(values) + 1) * epoch_lengths.get(label, 1.0),
            values,
            label=label,
            color=COLOURS[number % len(COLOURS)],
            linestyle=_LINES[number // len(COLOURS) % len(_LINES)],
            marker="o" if len(values) <= 12 else None,
            linewidth=1.8,
        )
    axes.grid(color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    if has_legend:
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def draw_region_accuracies(
    accuracies: Mapping[str, Sequence[float]], regions: Sequence[str], path: str | Path, *, label: str
) -> None:
    """Draw bars of the accuracy in percent of several models in each region."""
    # Wide enough for three digits above each bar, and for the names of the regions.
    figure_width = max(1.2 + 0.35 * len(regions) * len(accuracies), 2.0 * len(regions))
    figure = Figure(figsize=(figure_width, 4.2), layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / len(regions)
    for model, values in enumerate(accuracies.values()):
        for region, value in enumerate(values):
            centre = model + (region - (len(regions) - 1) / 2) * width
            axes.bar(centre, value, width * 0.92, color=COLOURS[region], label=regions[region] if model == 0 else None)
            axes.text(centre, value + 1, f"{value:.0f}", ha="center", va="bottom", fontsize=7)
    axes.set_xticks(range(len(accuracies)), list(accuracies), rotation=20)
    axes.set_ylim(0, 108)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.set_ylabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, loc="outside upper center", ncols=len(regions))
    save_picture(figure, path)
