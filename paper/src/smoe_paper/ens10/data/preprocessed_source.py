"""Forecasts from `ENS10_pl_mean.nc` and related files: statistics of ten members, and the members of `ensemble/`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from smoe.errors import DataError
from smoe.gridded._datasets import OpenFiles, open_netcdf
from smoe_paper.ens10.data.dated_fields import DatedFields
from smoe_paper.ens10.data.dates import LEAD, check_calendar, check_same_dates
from smoe_paper.ens10.data.global_grid import GlobalGrid
from smoe_paper.ens10.data.member_source import MemberSource
from smoe_paper.ens10.data.source import Block, EnsembleSource, Forecast
from smoe_paper.ens10.data.variables import NUM_MEMBERS, EnsembleTask

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
