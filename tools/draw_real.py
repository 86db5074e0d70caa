"""Draws docs/pictures/real.png: a task of `smoe bench real`, its map and its rivals.

python tools/draw_real.py    (fits the task and a ridge regression, less than a minute)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import CenteredNorm
from matplotlib.figure import Figure

import smoe
from smoe._notebook import coastlines
from smoe_paper.benchmarks.real import TASKS

ROOT = Path(__file__).parents[1]
TABLE, PICTURE = ROOT / "paper/results/bench/real.jsonl", ROOT / "docs/pictures/real.png"
TASK, WORDS = "A1B to E1", "Temperature in one scenario of emissions from another, 2051 to 2100"
RIVALS = {
    "LightGBM": "LightGBM",
    "climatology": "climatology",
    "U-Net on simple models": "U-Net on\nsimple models",
    "ridge": "ridge regression",
    "plain net on simple models": "convolutions",
}


def error_map(**options: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Latitudes, longitudes and root mean squared errors of each pixel in the test period."""
    task = TASKS[TASK]
    x, y = task.read(Path("~/.cache/smoe/real").expanduser(), Path())
    model = smoe.GridRegressor(progress=False, **task.options, **options).fit(x, y, **task.periods)
    first, _, last = task.periods["test"].partition(":")
    name = str(next(iter(y.data_vars)))
    time, latitude, longitude = (str(each) for each in y[name].dims)
    predicted, truth = (each[name].sel({time: slice(first, last)}) for each in (model.predict(x), y))
    errors = np.sqrt(np.nanmean(np.square(predicted.values - truth.values), axis=0))
    return y[latitude].values, y[longitude].values, errors


def draw() -> None:
    """Writes the picture."""
    row = next(row for row in map(json.loads, TABLE.read_text().splitlines()) if row["task"] == TASK)
    latitude, longitude, ours = error_map()
    gain = 100 * (1 - ours / error_map(net="ridge")[2])
    figure = Figure(figsize=(9, 3.5), dpi=110)
    figure.text(0.02, 0.93, WORDS, fontsize=12, fontweight="bold")
    axes = figure.add_axes((0.02, 0.2, 0.46, 0.68))
    east = (longitude + 180.0) % 360.0 - 180.0
    mesh = axes.pcolormesh(east, latitude, gain, cmap="RdBu", norm=CenteredNorm(halfrange=80), rasterized=True)
    axes.add_collection(LineCollection(coastlines(), colors="black", linewidths=0.7))
    axes.set(xlim=(east.min(), east.max()), ylim=(latitude.min(), latitude.max()), xticks=[], yticks=[], aspect=1.3)
    bar = figure.colorbar(mesh, cax=figure.add_axes((0.1, 0.14, 0.3, 0.03)), orientation="horizontal", extend="both")
    bar.set_label("error less than that of a ridge regression, in %", fontsize=9)
    axes = figure.add_axes((0.66, 0.2, 0.3, 0.66))
    values = [*(float(row[rival]) for rival in RIVALS), float(row["model"])]
    colours = [*["#b9c3cd"] * len(RIVALS), "#0072b2"]
    drawn = axes.barh([*RIVALS.values(), "smoe fit"], values, color=colours)
    axes.bar_label(drawn, [f"{value:.2f}" for value in values], padding=3, fontsize=9)
    axes.set(xlim=(0, 1.15 * max(values)), xlabel="test RMSE in K")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PICTURE)
    print(PICTURE, f"mean {np.sqrt(np.mean(ours**2)):.3f}")


if __name__ == "__main__":
    draw()
