"""Pictures of benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator


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


def draw_samples(rows: Sequence[Mapping[str, Any]], times: Mapping[str, float], path: Path) -> None:
    """Draws errors over the number of training samples (median and quartiles), over parameters and over time.

    Nothing if there are no rows of several numbers of samples.

    Args:
        times: Processor time of a training of each student, that of the convolution being 1.
    """
    tasks = list(dict.fromkeys(row["task"] for row in rows if row["block"] == "Samples"))
    if not tasks:
        return
    figure = Figure(figsize=(11.5, 3.0 * len(tasks) + 0.7), layout="constrained")
    for (samples, parameters, time), task in zip(
        figure.subplots(len(tasks), 3, squeeze=False, sharey="row"), tasks, strict=True
    ):
        for number, student in enumerate(times):
            color = f"C{number}"
            mine = [row for row in rows if (row["task"], row["student"]) == (task, student)]
            at_sizes = [row for row in mine if row["block"] == "Samples"]
            sizes = sorted({row["size"] for row in at_sizes})
            errors = [[row["error"] for row in at_sizes if row["size"] == size] for size in sizes]
            low, middle, high = (np.array([np.quantile(each, share) for each in errors]) for share in (0.25, 0.5, 0.75))
            samples.loglog(sizes, middle, marker="o", markersize=3, color=color)
            samples.fill_between(sizes, low, high, alpha=0.2, color=color, linewidth=0)
            usual = [row for row in mine if row["block"] == "Rivals" and row["course"] == "AdamW 0.001, 300 steps"]
            error = np.median([row["error"] for row in usual])
            parameters.loglog(usual[0]["parameters"], error, "o", color=color)
            time.semilogy(times[student], error, "o", color=color, label=student if task == tasks[0] else None)
        samples.set(title=task, xlabel="training samples; AdamW 3e-3", ylabel="test error / variance")
        parameters.set(title=task, xlabel="parameters; 512 samples, AdamW 1e-3")
        time.set(title=task, xlabel="time of a training; 512 samples, AdamW 1e-3")
        for axis in (samples.yaxis, parameters.xaxis):
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter("")
    figure.legend(loc="outside lower center", ncols=len(times), fontsize="small")
    figure.savefig(path, dpi=120)
