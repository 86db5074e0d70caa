"""Forecasts from files with members. The statistics of the first 5 or of all 10 members are computed here."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from smoe.errors import DataError
from smoe_paper.ens10.data.dates import check_calendar, check_order, check_same_dates
from smoe_paper.ens10.data.member_files import (
    MemberFile,
    OpenMembers,
    check_members,
    mean_and_spread,
    open_members,
)
from smoe_paper.ens10.data.source import Block, EnsembleSource, Forecast
from smoe_paper.ens10.data.variables import EnsembleTask


class MemberSource(EnsembleSource):
    """Reads `output.pl.2018MMDD` as downloaded, or `ensemble/output.pl.<date>.grib` and `.nc`.

    The constructor reads the first file. Files as downloaded must all hold the years of the first file.

    Args:
        files: Files with members, by date.
        task: Task that selects the fields.
        num_members: Number of members in the statistics, the lowest numbers first.
    """

    kind = "members"
    has_members = True

    def __init__(self, files: list[MemberFile], task: EnsembleTask, num_members: int) -> None:
        self.task, self.num_members, self.notices = task, num_members, []
        first = open_members(files[0], task)
        self._open: tuple[MemberFile, OpenMembers] = (files[0], first)
        self.grid = first.grid
        self._blocks = [Block(file.path.name, _starts_of(file, first.starts)) for file in files]
        self._files = dict(zip((block.name for block in self._blocks), files, strict=True))
        self.starts = np.sort(np.concatenate([block.starts for block in self._blocks]))
        check_order(self.starts, str(files[0].path.parent))
        check_calendar(self.starts, self.grid.shape)

    def blocks(self) -> list[Block]:
        """Returns one block for each file."""
        return self._blocks

    def read(self, block: Block) -> Iterator[Forecast]:
        """Yields the forecasts of a file."""
        file, members = self._members_of(block)
        for start in block.starts:
            yield self._read_start(file, members, start)

    def read_target(self, start: np.datetime64, block: Block) -> np.ndarray:
        """Returns all members of the target variable, `(10, H, W)`."""
        file, members = self._members_of(block)
        return self._read_variable(file, members, self.task.target_index, start)

    def close(self) -> None:
        """Does nothing: no file stays open between two reads."""

    def _members_of(self, block: Block) -> tuple[MemberFile, OpenMembers]:
        file = self._files[block.name]
        if self._open[0] != file:
            self._open = (file, open_members(file, self.task))
        members = self._open[1]
        if members.grid != self.grid:
            raise DataError(
                f"{file.path} is on a grid of {members.grid.shape}, the first file on {self.grid.shape} or other points"
            )
        check_same_dates(members.starts, str(file.path), block.starts, "the first file and this file's name")
        return file, members

    def _read_start(self, file: MemberFile, opened: OpenMembers, start: np.datetime64) -> Forecast:
        rows, columns = self.grid.shape
        statistics = np.empty((2 * len(self.task.variables), rows, columns), np.float32)
        target = None
        for index in range(len(self.task.variables)):
            members = self._read_variable(file, opened, index, start)
            statistics[2 * index], statistics[2 * index + 1] = mean_and_spread(members, self.num_members)
            if index == self.task.target_index:
                target = members
        return Forecast(start, statistics, target)

    def _read_variable(self, file: MemberFile, opened: OpenMembers, index: int, start: np.datetime64) -> np.ndarray:
        variable = self.task.variables[index]
        members = opened.read(variable, start)
        check_members(members, variable, self.task, self.grid, f"{file.path} ({start})")
        return members


def _starts_of(file: MemberFile, first_starts: np.ndarray) -> np.ndarray:
    if not file.has_all_years:
        return np.array([file.date])
    return np.array([f"{str(start)[:4]}{str(file.date)[4:]}" for start in first_starts], "datetime64[D]")
