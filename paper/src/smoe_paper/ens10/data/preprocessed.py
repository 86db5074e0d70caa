"""The preprocessed files that the authors of ENS-10 released."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from smoe.errors import DataError
from smoe.gridded import OpenFiles, open_netcdf
from smoe_paper.atmosphere.grid import Grid
from smoe_paper.atmosphere.store import Rows
from smoe_paper.ens10.data.fields import LEAD, DatedFields, GlobalGrid, check_calendar, check_same_dates
from smoe_paper.ens10.data.members import MemberSource
from smoe_paper.ens10.data.source import Block, EnsembleSource, Forecast
from smoe_paper.ens10.data.variables import NUM_MEMBERS, TASKS, EnsembleTask
from smoe_paper.ens10.store import Plan, normalise

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


def check_released(root: Path, plan: Plan, statistics: Rows, maps: np.ndarray) -> list[str]:
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
        ours = normalise(np.stack([statistics[row][channel] for row in rows]), maps[0, channel], maps[1, channel])
        distance = float(np.abs(ours - np.nan_to_num(fields.read(dates), nan=0.0)).max())
        worst = max(worst, distance)
        if distance > _TOLERANCE:
            raise DataError(
                f"{fields.where} differs from (x - mean) / (std + 0.1) of {name} over all dates by up to {distance:g}: "
                "it was made from other forecasts; leave it away, or make it again"
            )
    return [f"normalised values agree with ENS10_*_normalized.nc to {worst:.1g}"]


# Four dates of 22 channels at 361 x 720 are 91 MB.
_DATES_PER_BLOCK = 4


def statistics_file(root: Path, task: EnsembleTask, statistic: str, suffix: str = "") -> Path:
    """Returns the preprocessed file with `mean` or `std` of a task; the release adds the suffix `_normalized`."""
    return root / f"ENS10_{task.level_type}_{statistic}{suffix}.nc"


class PreprocessedSource(EnsembleSource):
    """Reads the preprocessed files of ENS-10. Their times are those for which the forecasts are valid.

    Args:
        root: Folder of the files.
        task: Task that selects the fields.
        members: Source of the members; None for statistics only.
    """

    kind = "preprocessed"
    num_members = NUM_MEMBERS

    def __init__(self, root: Path, task: EnsembleTask, members: MemberSource | None) -> None:
        self.task, self._members, self.has_members = task, members, members is not None
        self._files = OpenFiles(open_netcdf)
        self._fields: list[DatedFields] = []
        grid: GlobalGrid | None = None
        for variable in task.variables:
            for statistic, physics in (("mean", variable.on_level(task.level)), ("std", variable.spread())):
                path = statistics_file(root, task, statistic)
                fields = DatedFields(
                    self._files, path, (variable.name,), task.level, physics, grid, is_sea_only=variable.is_sea_only
                )
                grid = fields.grid
                if self._fields:
                    check_same_dates(fields.dates, fields.where, self._fields[0].dates, self._fields[0].where)
                self._fields.append(fields)
        first = self._fields[0]
        self.grid = first.grid.grid
        self.starts = first.dates - LEAD
        self.notices = list(first.notices)
        self._check_attributes(first)
        check_calendar(self.starts, self.grid.shape)
        if members is not None:
            check_same_dates(members.starts, str(root / "ensemble"), self.starts, f"{first.where}, less 48 h")
            self._member_blocks = {start: block for block in members.blocks() for start in block.starts}

    def _check_attributes(self, first: DatedFields) -> None:
        # The release does not record the number of members; files written by this package do.
        said = int(first.attributes.get("num_members", NUM_MEMBERS))
        if said != NUM_MEMBERS:
            raise DataError(f"{first.where} holds statistics of {said} members, expected {NUM_MEMBERS}")

    def blocks(self) -> list[Block]:
        """Returns blocks of a few adjacent dates."""
        parts = [
            self.starts[first : first + _DATES_PER_BLOCK] for first in range(0, len(self.starts), _DATES_PER_BLOCK)
        ]
        return [Block(str(part[0]), part) for part in parts]

    def read(self, block: Block) -> Iterator[Forecast]:
        """Yields the forecasts of a block."""
        statistics = np.empty((len(block.starts), len(self._fields), *self.grid.shape), np.float32)
        for index, fields in enumerate(self._fields):
            statistics[:, index] = fields.read(block.starts + LEAD)
        for start, each in zip(block.starts, statistics, strict=True):
            yield Forecast(start, each, self._read_members(start, each))

    def _read_members(self, start: np.datetime64, statistics: np.ndarray) -> np.ndarray | None:
        if self._members is None:
            return None
        members = self._members.read_target(start, self._member_blocks[start])
        mean, spread = (statistics[2 * self.task.target_index + place] for place in (0, 1))
        # Packing changes a member by a small part of the spread; another date changes the mean by much more.
        distance = float(np.abs(members.mean(axis=0, dtype=np.float64) - mean).mean())
        if distance > 0.1 * float(spread.mean()):
            raise DataError(
                f"{start}: the mean of the members of {self.task.target} differs from {self._fields[0].where} by "
                f"{distance:g} on average, the spread is {spread.mean():g}: one of the files is of another date or "
                "another ensemble"
            )
        return members

    def close(self) -> None:
        """Closes the files."""
        self._files.close()
