"""Whether probabilistic forecasts are as sure as they should be: histogram, reliability and spread against error."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from smoe.views.picture import COLOURS, save_picture


def draw_calibration(
    parts: Mapping[str, np.ndarray],
    spread_and_error: Mapping[str, tuple[np.ndarray, np.ndarray]],
    path: str | Path,
    *,
    title: str,
    units: str,
) -> None:
    """Draw three panels, with a colour for each forecast.

    Args:
        parts: Of each forecast, the share of the truths in equally probable parts of its distributions.
        spread_and_error: Of each forecast, spread and error of classes of pixels.
        path: Picture to write.
        title: Above everything.
        units: Of spread and error.

    Raises:
        ValueError: If the forecasts of both differ, or shares do not add up to 1.
    """
    if not parts or set(parts) != set(spread_and_error):
        raise ValueError(f"the panels are of different forecasts: {sorted(parts)} and {sorted(spread_and_error)}")
    for name, shares in parts.items():
        if not np.isclose(shares.sum(), 1.0):
            raise ValueError(f"the shares of {name} add up to {shares.sum():g}, expected 1")
    figure = Figure(figsize=(13.5, 4.2), layout="constrained")
    figure.suptitle(title, fontsize=13, fontweight="bold")
    histogram, reliability, spread_skill = (figure.add_subplot(1, 3, number) for number in (1, 2, 3))
    largest = max(float(np.max(values)) for pair in spread_and_error.values() for values in pair)
    for number, (name, shares) in enumerate(parts.items()):
        colour, count = COLOURS[number % len(COLOURS)], len(shares)
        borders = np.linspace(0.0, 1.0, count + 1)
        histogram.stairs(shares * count, borders, color=colour, linewidth=2.0, label=name)
        reliability.plot(borders, np.concatenate([[0.0], np.cumsum(shares)]), color=colour, marker=".", label=name)
        spread, error = spread_and_error[name]
        spread_skill.plot(spread, error, color=colour, marker="o", markersize=4, label=name)
    histogram.axhline(1.0, color="0.5", linewidth=1.0, linestyle="--")
    histogram.set(xlabel="place of the truth in the distribution", ylabel="density", ylim=(0.0, None))
    histogram.set_title("rank of the truth", fontsize=11)
    reliability.plot([0.0, 1.0], [0.0, 1.0], color="0.5", linewidth=1.0, linestyle="--")
    reliability.set(xlabel="forecast probability", ylabel="observed frequency of truths below", aspect="equal")
    reliability.set_title("reliability", fontsize=11)
    spread_skill.plot([0.0, largest], [0.0, largest], color="0.5", linewidth=1.0, linestyle="--")
    spread_skill.set(
        xlabel=f"spread, in {units}", ylabel=f"error of the mean, in {units}", xlim=(0, None), ylim=(0, None)
    )
    spread_skill.set_title("spread and error, by classes of the raw spread", fontsize=11)
    for axes in (histogram, reliability, spread_skill):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="0.92")
        axes.set_axisbelow(True)
    histogram.legend(frameon=False)
    save_picture(figure, path)
