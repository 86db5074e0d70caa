"""Charts: grids of pictures, curves, scores, accuracies and the use of experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from smoe._files import write_atomically

# Okabe and Ito's colours, which colour-blind readers can distinguish.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def save_picture(figure: Figure, path: str | Path) -> None:
    """Write a figure, whole or not at all; missing folders are made.

    Args:
        figure: A figure made without pyplot, so that no display and no global state are involved.
        path: File to write; the ending (`.png`, `.pdf`, `.svg`, ...) gives the format.
    """
    path = Path(path)
    canvas = FigureCanvasAgg(figure)
    formats = canvas.get_supported_filetypes()
    ending = path.suffix[1:].lower()
    if ending not in formats:
        raise ValueError(f"a picture must end in one of .{', .'.join(sorted(formats))}, got {path}")
    write_atomically(path, lambda file: figure.savefig(file, format=ending, dpi=160))


def draw_expert_use(axes: Axes, use: np.ndarray, *, of: str = "pixels") -> None:
    """Draws the share of the pixels that each expert serves, the most used expert first.

    Args:
        axes: Empty axes.
        use: Share of the pixels of each expert, from 0 to 1, `(X,)`; see `smoe.diagnostics.expert_use`.
        of: Whole of which the shares are parts, such as `globe` if pixels are weighted by their area.
    """
    ordered = np.sort(use)[::-1] * 100
    axes.bar(np.arange(1, len(ordered) + 1), ordered, 1.0, color=COLOURS[2], linewidth=0)
    # Each pixel has as many experts, so the mean is the use if all were used alike.
    axes.axhline(ordered.mean(), color="0.35", linestyle=(0, (4, 3)), linewidth=1.2, label="if all were used alike")
    axes.set_xlim(0.5, len(ordered) + 0.5)
    axes.set_ylim(0, 103)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("rank of the expert, most used first")
    axes.set_ylabel(f"of the {of}, in %")
    axes.set_title(f"use of each expert ({int((use > 0).sum())} of {len(use)} in use)", fontsize=10.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right")


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


def draw_accuracy(
    history: Sequence[Mapping[str, float | None]],
    path: str | Path,
    *,
    keys: Sequence[str],
    reference: tuple[str, float] | None = None,
) -> None:
    """Draw accuracies in percent by epoch.

    Args:
        history: One mapping per epoch, the first being epoch 1. An epoch without a key is left out of its curve.
        path: Picture to write, for example a `.png`.
        keys: The curves to draw.
        reference: Label and value in percent of a horizontal line, for example the paper's result.

    Raises:
        ValueError: If no epoch holds one of the keys.
    """
    if not keys:
        raise ValueError("keys must name at least one curve")
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for number, key in enumerate(keys):
        epochs, values = _points(history, key)
        axes.plot(
            epochs,
            values,
            color=COLOURS[number % len(COLOURS)],
            marker="o",
            markersize=5 if len(values) <= 40 else 0,
            linewidth=2,
            label=_readable(key),
            # A curve that ends at 100 must not be cut in half by the frame.
            clip_on=False,
            zorder=3,
        )
    if reference is not None:
        label, value = reference
        axes.axhline(value, color="0.35", linestyle=(0, (5, 3)), linewidth=1.3, zorder=2, label=f"{label}: {value:g} %")

    axes.set_xlim(0.5, max(len(history), 2) + 0.5)
    axes.set_ylim(0, 101)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")
    axes.set_ylabel("accuracy in %")
    axes.grid(axis="y", color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    save_picture(figure, path)


def draw_scores(
    history: Sequence[Mapping[str, float | None]],
    keys: Mapping[str, str],
    path: str | Path,
    *,
    references: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Draw scores by epoch, each with an axis of its own, the best epoch marked.

    Args:
        history: One mapping per epoch, the first being epoch 1. An epoch without a number is left out of the curve.
        keys: What to draw, and its title, such as `{"validation/rmse_z_500": "Z500 RMSE, in m2 s-2"}`.
        path: Picture to write.
        references: For a key, horizontal lines by their label.

    Raises:
        ValueError: If there is no key, or no epoch holds one of them.
    """
    if not keys:
        raise ValueError("keys must name at least one curve")
    figure = Figure(figsize=(0.6 + 4.4 * len(keys), 3.7), layout="constrained")
    for number, (key, title) in enumerate(keys.items()):
        epochs, values = _points(history, key)
        colour = COLOURS[number % len(COLOURS)]
        axes = figure.add_subplot(1, len(keys), number + 1)
        axes.plot(epochs, values, color=colour, marker="o", markersize=4 if len(values) <= 40 else 0, linewidth=1.9)
        best = min(range(len(values)), key=values.__getitem__)
        axes.plot(epochs[best], values[best], marker="o", markersize=9, markerfacecolor="none", color="0.2", zorder=4)
        axes.annotate(
            f"{values[best]:.4g}",
            (epochs[best], values[best]),
            xytext=(0, -17),
            textcoords="offset points",
            # Inside the frame at both ends.
            ha="left" if best == 0 else "right" if best == len(values) - 1 else "center",
        )
        for label, value in (references or {}).get(key, {}).items():
            axes.axhline(value, color="0.45", linestyle=(0, (5, 3)), linewidth=1.2)
            axes.text(
                0.99,
                value,
                f"{label} {value:.4g}",
                transform=axes.get_yaxis_transform(),
                ha="right",
                va="bottom",
                fontsize=8.5,
                color="0.3",
            )
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
    if not found:
        known = ", ".join(sorted({name for entry in history for name in entry})) or "nothing"
        raise ValueError(f"no epoch of the history holds {key!r}; it holds {known}")
    return list(found), list(found.values())


def _readable(key: str) -> str:
    return key.replace("_percent", " %").replace("_", " ").replace("/", ", ")


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
