"""Pictures of benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure


def draw_real(rows: list[dict[str, Any]], path: Path) -> None:
    """Error of each row as a share of the model's, by task."""
    kinds = ("climatology", "damped anomaly", "ridge", "LightGBM", "plain net alone")
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
