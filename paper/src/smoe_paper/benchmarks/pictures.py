"""Pictures of benchmarks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure


def draw_real(rows: list[dict[str, Any]], path: Path) -> None:
    """Error of each row as a share of the model's, by task."""
    kinds = ("climatology", "damped anomaly by hand", "ridge by hand", "LightGBM", "U-Net on simple models")
    figure = Figure(figsize=(8.0, 0.4 * len(rows) + 1.2), layout="constrained")
    axes = figure.add_subplot()
    for marker, kind in zip("osD^v", kinds, strict=True):
        places = [number for number, row in enumerate(rows) if row[kind]]
        values = [float(rows[number][kind]) / float(rows[number]["model"]) for number in places]
        axes.plot(np.clip(values, 0.8, 2.5), places, marker, label=kind, alpha=0.8)
    axes.axvline(1.0, color="black", linewidth=1.0)
    axes.set_yticks(range(len(rows)), [f"{row['task']} ({row['target']})" for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("RMSE on the test period, model = 1 (beyond 2.5 at the edge)")
    axes.legend(fontsize="small", loc="lower right")
    figure.savefig(path, dpi=120)


def draw_samples(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Draws median and quartiles of the errors over the number of training samples; nothing if there are no rows."""
    rows = [row for row in rows if row["block"] == "Samples"]
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    if not tasks:
        return
    figure = Figure(figsize=(4.2 * len(tasks), 3.4), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for student in dict.fromkeys(row["student"] for row in rows):
            mine = [row for row in rows if (row["task"], row["student"]) == (task, student)]
            sizes = sorted({row["size"] for row in mine})
            errors = [torch.tensor([row["error"] for row in mine if row["size"] == size]) for size in sizes]
            low, middle, high = zip(
                *(each.quantile(torch.tensor([0.25, 0.5, 0.75])).tolist() for each in errors), strict=True
            )
            (line,) = axes.loglog(sizes, middle, marker="o", markersize=3, label=student)
            axes.fill_between(sizes, low, high, alpha=0.2, color=line.get_color(), linewidth=0)
        axes.set(title=task, xlabel="training samples", ylabel="test error / variance")
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)
