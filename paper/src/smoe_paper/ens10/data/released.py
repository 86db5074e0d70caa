"""Compares the release's own normalised files with the values normalised here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from smoe.errors import DataError
from smoe.gridded._datasets import OpenFiles, open_netcdf
from smoe.gridded.grid import Grid
from smoe_paper.ens10.data.dated_fields import DatedFields
from smoe_paper.ens10.data.dates import LEAD
from smoe_paper.ens10.data.global_grid import GlobalGrid
from smoe_paper.ens10.data.normalisation import normalise
from smoe_paper.ens10.data.preprocessed_source import statistics_file
from smoe_paper.ens10.data.store_format import Plan
from smoe_paper.ens10.data.variables import NUM_MEMBERS, TASKS

_TOLERANCE = 2e-3


def open_normalised(root: Path, plan: Plan) -> dict[str, DatedFields]:
    """Opens the normalised files of the release by channel, such as `Z_mean`; the result is empty without files."""
    task = TASKS[plan.task]
    grid = GlobalGrid(Grid(plan.latitude, plan.longitude))
    files = OpenFiles(open_netcdf)
    channels = {}
    for variable in task.variables:
        physics = replace(
            variable.physics, short_name=f"normalised {variable.name}", plausible=(-1e4, 1e4), varies=False
        )
        for statistic in ("mean", "std"):
            path = statistics_file(root, task, statistic, "_normalized")
            if not path.is_file():
                return {}
            channels[f"{variable.name}_{statistic}"] = DatedFields(
                files, path, (variable.name,), task.level, physics, grid, is_sea_only=variable.is_sea_only
            )
    return channels


def check_released(root: Path, plan: Plan, statistics: np.ndarray, maps: np.ndarray) -> list[str]:
    """Compares three dates with the release's normalised files, if these exist.

    Args:
        root: Folder of the files.
        plan: Plan of the store.
        statistics: Statistics in physical units, `(T, C, H, W)`.
        maps: Mean and standard deviation at each point, `(2, C, H, W)`.

    Returns:
        Messages about the comparison.

    Raises:
        DataError: If the values differ.
    """
    channels = open_normalised(root, plan) if plan.num_members == NUM_MEMBERS else {}
    if not channels:
        return []
    rows = np.unique(np.linspace(0, len(plan.starts) - 1, 3).astype(int))
    dates = np.array(plan.starts, "datetime64[D]")[rows] + LEAD
    worst = 0.0
    for channel, (name, fields) in enumerate(channels.items()):
        ours = normalise(statistics[rows, channel], maps[0, channel], maps[1, channel])
        distance = float(np.abs(ours - np.nan_to_num(fields.read(dates), nan=0.0)).max())
        worst = max(worst, distance)
        if distance > _TOLERANCE:
            raise DataError(
                f"{fields.where} differs from (x - mean) / (std + 0.1) of {name} over all dates by up to {distance:g}: "
                "it was made from other forecasts; leave it away, or make it again"
            )
    return [f"normalised values agree with ENS10_*_normalized.nc to {worst:.1g}"]
