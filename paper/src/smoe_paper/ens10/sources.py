"""Ensemble forecasts as downloaded: the preprocessed files of ENS-10, its members, the truth, and the index."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from smoe.errors import DataError
from smoe.gridded import open_netcdf
from smoe_paper.atmosphere.axes import Grid
from smoe_paper.atmosphere.files import OpenFiles
from smoe_paper.atmosphere.variables import Variable
from smoe_paper.ens10.files import (
    LEAD,
    DatedFields,
    MemberFile,
    OpenMembers,
    check_calendar,
    check_members,
    check_order,
    check_same_dates,
    find_member_files,
    mean_and_spread,
    open_members,
)
from smoe_paper.ens10.variables import NUM_MEMBERS, TASKS, EnsembleTask, TaskName


@dataclass(frozen=True)
class Block:
    """Forecasts that are read together, from one file or a few neighbouring dates."""

    name: str
    starts: np.ndarray


@dataclass(frozen=True)
class Forecast:
    """One ensemble forecast."""

    start: np.datetime64
    statistics: np.ndarray
    members: np.ndarray | None


class EnsembleSource:
    """A source of forecasts, which checks everything that it reads."""

    kind: str
    task: EnsembleTask
    num_members: int
    grid: Grid
    starts: np.ndarray
    has_members: bool
    notices: list[str]

    def blocks(self) -> list[Block]:
        """Returns all forecasts in blocks, the same each time."""
        raise NotImplementedError

    def read(self, block: Block) -> Iterator[Forecast]:
        raise NotImplementedError

    def close(self) -> None:
        """Closes the files."""

    def __enter__(self) -> EnsembleSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MemberSource(EnsembleSource):
    """Reads `output.pl.2018MMDD` as downloaded, or `ensemble/output.pl.<date>.grib` and `.nc`.

    The constructor reads the first file. Files as downloaded must all hold the years of the first file.
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


# Four dates of 22 channels at 361 x 720 are 91 MB.
_DATES_PER_BLOCK = 4


def statistics_file(root: Path, task: EnsembleTask, statistic: str) -> Path:
    """Returns the preprocessed file with `mean` or `std` of a task."""
    return root / f"ENS10_{task.level_type}_{statistic}.nc"


class PreprocessedSource(EnsembleSource):
    """Reads the preprocessed files of ENS-10. Their times are those for which the forecasts are valid."""

    kind = "preprocessed"
    num_members = NUM_MEMBERS

    def __init__(self, root: Path, task: EnsembleTask, members: MemberSource | None) -> None:
        self.task, self._members, self.has_members = task, members, members is not None
        self._files = OpenFiles(open_netcdf)
        self._fields: list[DatedFields] = []
        grid: Grid | None = None
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
        self.grid = first.grid
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
        self._files.close()


_EFI = Variable("efi", "efi", "1", (-1.2, 1.2), varies=False, unit_names=("", "dimensionless"))


def is_ens10(path: Path) -> bool:
    """Returns whether a folder holds files of ENS-10's layout."""
    if not path.is_dir():
        return False
    return any(path.glob("ENS10_*.nc")) or any(find_member_files(path, task) for task in TASKS.values())


def open_ens10(root: Path, task_name: TaskName, num_members: Literal[5, 10]) -> EnsembleSource:
    """Opens the forecasts of a task.

    The preprocessed statistics have ten members; statistics of five need the members themselves.
    """
    if task_name not in TASKS:
        raise DataError(f"no task is named {task_name!r}; there are {', '.join(TASKS)}")
    if num_members not in (5, 10):
        raise DataError(f"--members must be 5 or 10, got {num_members}")
    if not root.is_dir():
        raise DataError(f"{root} does not exist; expected a folder of ENS-10")
    task = TASKS[task_name]
    files = find_member_files(root, task)
    paths = [statistics_file(root, task, statistic) for statistic in ("mean", "std")]
    present = [path for path in paths if path.is_file()]
    if len(present) == 1:
        missing = next(path for path in paths if path not in present)
        raise DataError(f"{root} has {present[0].name} but not {missing.name}; download or make both")
    if present and num_members == NUM_MEMBERS:
        # The members' mean is compared with the statistics while reading.
        return PreprocessedSource(root, task, MemberSource(files, task, NUM_MEMBERS) if files else None)
    if files:
        return MemberSource(files, task, num_members)
    if present:
        raise DataError(
            f"{paths[0]} is of ten members, and --members 5 needs the members themselves: put "
            f"ensemble/output.{task.level_type}.<date>.grib beside it, or name the folder of the files as downloaded"
        )
    raise DataError(
        f"{root} holds no forecasts for {task_name}; expected {paths[0].name} and {paths[1].name}, "
        f"ensemble/output.{task.level_type}.<date>.grib, or output.{task.level_type}.2018<month><day>"
    )


def open_truth(root: Path, task: EnsembleTask, grid: Grid, files: OpenFiles | None = None) -> DatedFields:
    """Opens ERA5 at the dates for which the forecasts are valid."""
    path = root / task.truth_file
    if not path.is_file():
        raise DataError(f"{root} has no {task.truth_file}, the truth of {task.name}: put it there, or name its --truth")
    variable = task.target_variable
    names = (variable.name, variable.grib_name)
    physics = variable.on_level(task.level)
    return DatedFields(files or OpenFiles(open_netcdf), path, names, task.level, physics, grid)


def open_efi(root: Path, task: EnsembleTask, grid: Grid) -> DatedFields | None:
    """Opens the extreme forecast index of the release, if it exists; otherwise returns None."""
    path = root / f"efi_{task.name}.nc"
    if not path.is_file():
        return None
    return DatedFields(OpenFiles(open_netcdf), path, ("efi",), None, _EFI, grid)
