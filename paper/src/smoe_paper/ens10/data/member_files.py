"""Finds and opens the ten members of each forecast, in GRIB as released, or in NetCDF with cfgrib's names."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from smoe.errors import DataError
from smoe.gridded.grid import Grid
from smoe_paper.ens10.data.field_checks import check_fields
from smoe_paper.ens10.data.variables import NUM_MEMBERS, EnsembleTask, EnsembleVariable

# output.pl.20180104 holds the hindcasts of 20 years; ensemble/output.pl.19980104.grib those of one date.
_RAW_FILE = re.compile(r"output\.(pl|sfc)\.([0-9]{8})(?:\.grib)?")
_DATE_FILE = re.compile(r"output\.(pl|sfc)\.([0-9]{8})\.(grib|nc)")


@dataclass(frozen=True)
class MemberFile:
    """A file with members; `date` is the date in its name, which stands for all years in a file as downloaded."""

    path: Path
    date: np.datetime64
    has_all_years: bool

    def check_start(self, start: np.datetime64) -> None:
        """Refuses a start date that contradicts the file's name."""
        fits = str(start)[5:] == str(self.date)[5:] if self.has_all_years else start == self.date
        if not fits:
            raise DataError(
                f"{self.path} holds a forecast that started on {start}, but its name says {self.date}; it was renamed "
                "or its dates are wrong"
            )


class OpenMembers(ABC):
    """An open file with members.

    Attributes:
        grid: Grid of the fields, from north to south.
        starts: Start dates of its forecasts, datetime64[D], ascending.
    """

    grid: Grid
    starts: np.ndarray

    @abstractmethod
    def read(self, variable: EnsembleVariable, start: np.datetime64) -> np.ndarray:
        """Returns all members of a variable in the order of their numbers, float32, `(10, H, W)`, not checked."""


def find_member_files(root: Path, task: EnsembleTask) -> list[MemberFile]:
    """Returns the files of a data set with the members of a task's fields, by date.

    Raises:
        DataError: If there are two files of one date.
    """
    found: dict[np.datetime64, MemberFile] = {}
    ensemble = root / "ensemble"
    for folder, pattern, has_all_years in ((ensemble, _DATE_FILE, False), (root, _RAW_FILE, True)):
        if found or not folder.is_dir():
            continue
        for path in sorted(folder.iterdir()):
            match = pattern.fullmatch(path.name)
            if match is None or match[1] != task.level_type:
                continue
            try:
                date = np.datetime64(f"{match[2][:4]}-{match[2][4:6]}-{match[2][6:]}", "D")
            except ValueError:
                raise DataError(f"{path}: {match[2]} is not a date; expected its year, month and day") from None
            if date in found:
                raise DataError(f"{folder} has two files of {date}: {found[date].path.name}, {path.name}; keep one")
            found[date] = MemberFile(path, date, has_all_years)
    return [found[date] for date in sorted(found)]


def open_members(file: MemberFile, task: EnsembleTask) -> OpenMembers:
    """Opens a file and checks that each of its forecasts has ten members of every variable of the task.

    Raises:
        DataError: If something is missing, repeated, truncated, on another grid, or misdated.
    """
    if file.path.suffix == ".nc":
        from smoe_paper.ens10.data.netcdf_members import NetcdfMembers

        opened: OpenMembers = NetcdfMembers(file, task)
    else:
        from smoe_paper.ens10.data.grib_members import GribMembers

        opened = GribMembers(file, task)
    for start in opened.starts:
        file.check_start(start)
    return opened


def check_members(members: np.ndarray, variable: EnsembleVariable, task: EnsembleTask, grid: Grid, where: str) -> None:
    """Refuses members `(10, H, W)` of a variable that are not plausible."""
    physics, where = variable.on_level(task.level), f"{where}: {variable.name}"
    names = np.array([f"member {place}" for place in range(1, len(members) + 1)])
    check_fields(members, physics, names, grid, where, is_sea_only=variable.is_sea_only)


def check_numbers(numbers: list[int], where: str) -> None:
    """Refuses a number of members other than ten."""
    if len(numbers) != NUM_MEMBERS or len(set(numbers)) != NUM_MEMBERS:
        listed = ", ".join(map(str, sorted(numbers)))
        raise DataError(
            f"{where} has {len(numbers)} members ({listed}), expected {NUM_MEMBERS} with different numbers; download "
            "the file again"
        )


def mean_and_spread(members: np.ndarray, num_members: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and population standard deviation of the first members `(M, H, W)`, as in the release; float32.

    The release divides by M, not by M - 1 (cdo's `daystd`, torch's `unbiased=False`).
    """
    first = members[:num_members]
    # Means of geopotential in float32 would lose the digits in which members differ.
    mean = first.mean(axis=0, dtype=np.float64)
    squares = np.zeros_like(mean)
    for member in first:
        squares += np.square(member - mean)
    return mean.astype(np.float32), np.sqrt(squares / len(first)).astype(np.float32)
