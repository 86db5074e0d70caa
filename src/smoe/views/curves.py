"""Accuracies and scores over the epochs of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from smoe.views.picture import COLOURS, save_picture


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
