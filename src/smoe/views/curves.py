"""Accuracy over the epochs of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from smoe.views.picture import COLOURS, save_picture


def draw_accuracy(
    history: Sequence[Mapping[str, float]],
    path: str | Path,
    *,
    keys: Sequence[str] = ("validation/within_1_percent",),
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
        points = [(epoch, entry[key]) for epoch, entry in enumerate(history, start=1) if key in entry]
        if not points:
            known = ", ".join(sorted({name for entry in history for name in entry})) or "nothing"
            raise ValueError(f"no epoch of the history holds {key!r}; it holds {known}")
        epochs, values = zip(*points, strict=True)
        axes.plot(
            epochs,
            values,
            color=COLOURS[number % len(COLOURS)],
            marker="o",
            markersize=5 if len(points) <= 40 else 0,
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


def _readable(key: str) -> str:
    return key.replace("_percent", " %").replace("_", " ").replace("/", ", ")
