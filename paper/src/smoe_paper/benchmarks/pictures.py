"""The figure of `smoe bench learn`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure


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
