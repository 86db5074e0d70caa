"""Several models side by side: accuracy by epoch, and by region."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from smoe.views.picture import COLOURS, save_picture

_LINES = ("-", (0, (5, 2)), (0, (1, 1.5)))


def draw_accuracies(
    curves: Mapping[str, Sequence[float]],
    path: str | Path,
    *,
    label: str,
    epoch_lengths: Mapping[str, float] | None = None,
    unit: str = "epoch",
) -> None:
    """Draw the accuracy in percent of several models by epoch, the epochs on a logarithmic axis.

    Args:
        curves: Accuracies by model, the first being epoch 1.
        path: Picture to write.
        label: Name of the accuracy, at the vertical axis.
        epoch_lengths: Length of an epoch of each model, in the unit of the axis; 1 if not given.
        unit: Unit of the horizontal axis.

    Raises:
        ValueError: If there is no curve, or an empty one.
    """
    figure = Figure(figsize=(8.0, 4.8), layout="constrained")
    axes = figure.add_subplot()
    _plot(axes, curves, epoch_lengths or {})
    axes.set_xscale("log")
    axes.set_ylim(0, 101)
    axes.set_xlabel(unit)
    axes.set_ylabel(label)
    save_picture(figure, path)


def draw_epochs(panels: Mapping[str, Mapping[str, Sequence[float]]], path: str | Path) -> None:
    """Draw quantities of several models by epoch, one below the other.

    Args:
        panels: For the name of each quantity, its values by model, the first being epoch 1.
        path: Picture to write.

    Raises:
        ValueError: If there is no panel, no curve, or an empty one.
    """
    if not panels:
        raise ValueError("panels must hold at least one quantity")
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
    if not curves:
        raise ValueError("curves must hold at least one model")
    for number, (label, values) in enumerate(curves.items()):
        if not values:
            raise ValueError(f"the curve of {label!r} is empty")
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
    """Draw bars of the accuracy in percent of several models in each region.

    Args:
        accuracies: For each model, one number for each region.
        regions: Names of the regions.
        path: Picture to write.
        label: Name of the accuracy, at the vertical axis.

    Raises:
        ValueError: If there is no model, or the numbers of a model do not fit the regions.
    """
    if not accuracies:
        raise ValueError("accuracies must hold at least one model")
    # Wide enough for three digits above each bar, and for the names of the regions.
    figure_width = max(1.2 + 0.35 * len(regions) * len(accuracies), 2.0 * len(regions))
    figure = Figure(figsize=(figure_width, 4.2), layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / len(regions)
    for model, (name, values) in enumerate(accuracies.items()):
        if len(values) != len(regions):
            raise ValueError(f"{name!r} has {len(values)} accuracies for {len(regions)} regions")
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
