"""ENS-10: its variables and tasks, its members as downloaded in GRIB or NetCDF, and the truth."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xarray as xr

from smoe.errors import DataError
from smoe.gridded import check_grib_file, damage_as_data_error, import_cfgrib, open_netcdf
from smoe_paper.atmosphere.fields import Grid, check_order, find_field, on_level, real_dates
from smoe_paper.atmosphere.variables import VARIABLES, Variable, check_plausible, plausible_bounds

LEAD_DAYS = 2
"""Time from the start of a forecast to the date for which it is valid: 48 hours."""

NUM_MEMBERS = 10

TaskName = Literal["z500", "t850", "t2m"]
LevelType = Literal["pl", "sfc"]


@dataclass(frozen=True)
class EnsembleVariable:
    name: str
    grib_name: str
    grib_short_name: str
    physics: Variable
    is_sea_only: bool = False

    def on_level(self, level: int | None) -> Variable:
        """Unit and bounds of values on a level in hPa; None for a variable of the surface."""
        return replace(self.physics, plausible=plausible_bounds(self.physics, level), has_levels=level is not None)


def _own(short_name: str, units: str, low: float, high: float, varies: bool = True) -> Variable:
    return Variable(short_name, short_name, units, (low, high), varies=varies)


PRESSURE_LEVEL_VARIABLES = (
    EnsembleVariable("Z", "z", "z", VARIABLES["z"]),
    EnsembleVariable("T", "t", "t", VARIABLES["t"]),
    EnsembleVariable("Q", "q", "q", VARIABLES["q"]),
    EnsembleVariable("W", "w", "w", _own("w", "Pa s-1", -200.0, 200.0)),
    EnsembleVariable("D", "d", "d", _own("d", "s-1", -0.1, 0.1)),
    EnsembleVariable("U", "u", "u", VARIABLES["u"]),
    EnsembleVariable("V", "v", "v", VARIABLES["v"]),
)
SURFACE_VARIABLES = (
    EnsembleVariable("SSTK", "sst", "sst", _own("sst", "K", 200.0, 350.0), is_sea_only=True),
    EnsembleVariable("TCW", "tcw", "tcw", _own("tcw", "kg m-2", -1.0, 200.0)),
    EnsembleVariable("TCWV", "tcwv", "tcwv", _own("tcwv", "kg m-2", -1.0, 200.0)),
    EnsembleVariable("CP", "cp", "cp", _own("cp", "m", -0.01, 3.0, False)),
    # Below a cold plateau, a coarse model reduces the pressure to values above all barometer readings.
    EnsembleVariable("MSL", "msl", "msl", _own("msl", "Pa", 8.0e4, 1.25e5)),
    EnsembleVariable("TCC", "tcc", "tcc", VARIABLES["tcc"]),
    EnsembleVariable("U10M", "u10", "10u", VARIABLES["u10"]),
    EnsembleVariable("V10M", "v10", "10v", VARIABLES["v10"]),
    EnsembleVariable("T2M", "t2m", "2t", VARIABLES["t2m"]),
    EnsembleVariable("TP", "tp", "tp", _own("tp", "m", -0.01, 3.0, False)),
    EnsembleVariable("SKT", "skt", "skt", _own("skt", "K", 130.0, 400.0)),
)


@dataclass(frozen=True)
class EnsembleTask:
    name: TaskName
    level_type: LevelType
    level: int | None
    variables: tuple[EnsembleVariable, ...]
    target: str
    truth_file: str

    @property
    def target_index(self) -> int:
        return [variable.name for variable in self.variables].index(self.target)

    @property
    def target_variable(self) -> EnsembleVariable:
        return self.variables[self.target_index]

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the input's channels: mean and standard deviation of each variable, alternating."""
        return tuple(f"{variable.name}_{kind}" for variable in self.variables for kind in ("mean", "std"))


TASKS: dict[TaskName, EnsembleTask] = {
    "z500": EnsembleTask("z500", "pl", 500, PRESSURE_LEVEL_VARIABLES, "Z", "ERA5_z500.nc"),
    "t850": EnsembleTask("t850", "pl", 850, PRESSURE_LEVEL_VARIABLES, "T", "ERA5_t850.nc"),
    "t2m": EnsembleTask("t2m", "sfc", None, SURFACE_VARIABLES, "T2M", "ERA5_sfc_t2m.nc"),
}

LEAD = np.timedelta64(LEAD_DAYS, "D")
_EFI = Variable("efi", "efi", "1", (-1.2, 1.2), varies=False)
# Land is 29 % of the globe and up to a third of the points of a coarse grid; lakes and ice may have values or not.
_MAX_LAND_SHARE = 0.6


def check_fields(
    fields: np.ndarray, physics: Variable, dates: np.ndarray, grid: Grid, where: str, *, is_sea_only: bool = False
) -> None:
    """Refuses fields `(T, H, W)` with values that are infinite, implausible, or missing."""
    check_plausible(fields, physics, None, dates, where)
    is_missing = np.isnan(fields)
    share = is_missing.mean(axis=(1, 2))
    most = _MAX_LAND_SHARE if is_sea_only else 0.0
    if share.max() > most:
        step = int(np.argmax(share > most))
        row, column = np.unravel_index(int(is_missing[step].argmax()), grid.shape)
        raise DataError(
            f"{where} holds {int(is_missing.sum()):,} NaN{', more than land can be' if is_sea_only else ''}, the first "
            f"at {dates[step]}, latitude {grid.latitude[row]:g}, longitude {grid.longitude[column]:g}: repair the file"
        )


class DatedFields:
    """Fields of a file by date, from north to south. The constructor checks the header, `read` the values."""

    def __init__(self, path: Path, names: tuple[str, ...], level: int | None, physics: Variable, grid: Grid) -> None:
        self._path, self._physics, self.grid = path, physics, grid
        with damage_as_data_error(path):
            dataset = open_netcdf(path)
        array, _ = find_field(dataset, path, names, physics, grid, north_first=True)
        self.where = f"{path}: {array.name}"
        self._array = on_level(array, level, str(path))
        # Days only: the programs that made the files assign a day's statistics to any hour of the day.
        self.dates = real_dates(array.time.values, self.where).astype("datetime64[D]")
        check_order(self.dates, self.where)

    def read(self, date: np.datetime64) -> np.ndarray:
        """Returns the field of a date, float32, `(H, W)`."""
        index = np.flatnonzero(self.dates == date)
        if not len(index):
            raise DataError(f"{self.where} lacks {date}; it has {self.dates[0]} to {self.dates[-1]}")
        with damage_as_data_error(self._path, str(self._array.name)):
            field = self._array.isel(time=index).values.astype(np.float32)
        check_fields(field, self._physics, np.array([date]), self.grid, self.where)
        return field[0]


# output.pl.20180104 holds the hindcasts of 20 years; ensemble/output.pl.19980104.grib those of one date.
_RAW_FILE = re.compile(r"output\.(pl|sfc)\.([0-9]{8})(?:\.grib)?")
_DATE_FILE = re.compile(r"output\.(pl|sfc)\.([0-9]{8})\.(grib|nc)")


@dataclass(frozen=True)
class MemberFile:
    """A file with members; `date` is the date in its name, which stands for all years in a file as downloaded."""

    path: Path
    date: np.datetime64
    has_all_years: bool


def find_member_files(root: Path, task: EnsembleTask) -> list[MemberFile]:
    """Returns the files of a data set with the members of a task's fields, by date."""
    for folder, pattern, has_all_years in ((root / "ensemble", _DATE_FILE, False), (root, _RAW_FILE, True)):
        found: dict[str, MemberFile] = {}
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            match = pattern.fullmatch(path.name)
            if match is None or match[1] != task.level_type:
                continue
            date = f"{match[2][:4]}-{match[2][4:6]}-{match[2][6:]}"
            if date in found:
                raise DataError(f"{folder} has two files of {date}: {found[date].path.name}, {path.name}; keep one")
            found[date] = MemberFile(path, np.datetime64(date, "D"), has_all_years)
        if found:
            return list(found.values())
    return []


def mean_and_spread(members: np.ndarray, num_members: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and population standard deviation of the first members `(M, H, W)`, as in the release; float32.

    The release divides by M, not by M - 1 (cdo's `daystd`, torch's `unbiased=False`).
    """
    # In float32, means of geopotential would lose the digits in which members differ.
    first = members[:num_members].astype(np.float64)
    return first.mean(axis=0).astype(np.float32), first.std(axis=0).astype(np.float32)


def check_numbers(numbers: Sequence[int], where: str) -> None:
    if len(numbers) != NUM_MEMBERS or len(set(numbers)) != NUM_MEMBERS:
        raise DataError(
            f"{where} has {len(numbers)} members ({', '.join(map(str, sorted(numbers)))}), expected {NUM_MEMBERS} with "
            "different numbers; download the file again"
        )


class Members:
    """The members of the forecasts in a file: of one date or, as downloaded, of twenty years, leads and levels."""

    def __init__(self, file: MemberFile, task: EnsembleTask) -> None:
        self._file, self._level, self._arrays = file, task.level, dict[str, xr.DataArray]()
        path, grid, dims = file.path, None, ("time", "number")
        is_whole = task.level is not None or path.suffix == ".nc"
        dataset = _open(path, {"level": task.level}) if is_whole else None
        for variable in task.variables:
            names, physics = [variable.grib_name], variable.on_level(task.level)
            # Variables of the surface are on levels of different kinds, which cfgrib opens one by one.
            opened = _open(path, {"shortName": variable.grib_short_name}) if dataset is None else dataset
            array, grid = find_field(opened, path, names, physics, grid, dims=dims, north_first=True)
            where = f"{path}: {array.name}"
            check_numbers(array.number.values.tolist(), where)
            self.starts = real_dates(array.time.values, where).astype("datetime64[D]")
            valid = real_dates(array.valid_time.values, where)
            if len(valid) != len(self.starts) or (valid - self.starts != LEAD).any():
                raise DataError(f"{where} holds forecasts from {self.starts[0]} for {valid[0]}, expected 48 h")
            self._arrays[variable.name] = on_level(array, task.level, str(path)).sortby("number")
        assert grid is not None
        self.grid = grid
        for start in self.starts:
            fits = str(start)[5:] == str(file.date)[5:] if file.has_all_years else start == file.date
            if not fits:
                raise DataError(f"{path} holds a forecast that started on {start}, but its name says {file.date}")

    def read(self, variable: EnsembleVariable, start: np.datetime64) -> np.ndarray:
        with damage_as_data_error(self._file.path, f"{variable.name} of {start}"):
            array = self._arrays[variable.name].isel(time=int(np.flatnonzero(self.starts == start)[0]))
            return array.values.astype(np.float32)


def _open(path: Path, keys: dict[str, Any]) -> xr.Dataset:
    with damage_as_data_error(path):
        if path.suffix == ".nc":
            return open_netcdf(path)
        import_cfgrib()
        from cfgrib import messages

        check_grib_file(path)
        names = ("shortName", "dataDate:int", "dataTime:int", "endStep:int", "typeOfLevel", "level:int", "number:int")
        index = messages.FileIndex.from_fieldset(messages.FileStream(str(path), errors="raise"), list(names))
        for key, found in index.iter_index():
            # cfgrib would take one of them.
            if len(found) > 1:
                raise DataError(f"{path} holds a field {len(found)} times: {' '.join(map(str, key))}; keep one")
        # No index is written beside the data: the folder may be read-only, and an index may be out of date.
        options = {"indexpath": "", "errors": "raise", "filter_by_keys": {"endStep": 24 * LEAD_DAYS, **keys}}
        return xr.open_dataset(path, engine="cfgrib", backend_kwargs=options, decode_timedelta=False)


class EnsembleSource:
    """Forecasts of a task, of `output.pl.2018MMDD` as downloaded or of `ensemble/output.pl.<date>.grib` and `.nc`.

    `order` is that in which they are read fastest, `starts` ascend. Files as downloaded must all hold the years of the
    first file.
    """

    def __init__(self, files: list[MemberFile], task: EnsembleTask, num_members: int) -> None:
        self._open = (files[0], Members(files[0], task))
        years = [str(start)[:4] for start in self._open[1].starts]
        self._file_of: dict[np.datetime64, MemberFile] = {}
        for file in files:
            date = str(file.date)
            dates = [f"{year}{date[4:]}" for year in years] if file.has_all_years else [date]
            self._file_of |= {np.datetime64(each, "D"): file for each in dates}
        self.order = list(self._file_of)
        self.task, self.num_members, self.grid = task, num_members, self._open[1].grid
        self.starts = np.sort(np.array(self.order, "datetime64[D]"))
        check_order(self.starts, f"starts of {task.name}")

    def read(self, start: np.datetime64) -> tuple[np.ndarray, np.ndarray]:
        """Returns mean and spread of each variable, `(C, H, W)`, and the members of the target, `(10, H, W)`."""
        file = self._file_of[start]
        if self._open[0] != file:
            self._open = (file, Members(file, self.task))
        opened = self._open[1]
        if not opened.grid.is_close(self.grid) or start not in opened.starts:
            raise DataError(f"{file.path} is on another grid than the first file, or lacks the forecast from {start}")
        statistics = np.empty((2 * len(self.task.variables), *self.grid.shape), np.float32)
        target = np.empty(0)
        for index, variable in enumerate(self.task.variables):
            members = opened.read(variable, start)
            names = np.array([f"member {place}" for place in range(1, len(members) + 1)])
            physics, where = variable.on_level(self.task.level), f"{file.path} ({start}): {variable.name}"
            check_fields(members, physics, names, self.grid, where, is_sea_only=variable.is_sea_only)
            statistics[2 * index : 2 * index + 2] = mean_and_spread(members, self.num_members)
            target = members if index == self.task.target_index else target
        return statistics, target


def open_ens10(root: Path, task: EnsembleTask, num_members: int = NUM_MEMBERS) -> EnsembleSource:
    if not root.is_dir():
        raise DataError(f"{root} does not exist; expected a folder of ENS-10")
    files = find_member_files(root, task)
    if not files:
        raise DataError(
            f"{root} has no members of {task.name}; expected ensemble/output.{task.level_type}.<date>.grib or .nc, or "
            f"output.{task.level_type}.2018<month><day>"
        )
    return EnsembleSource(files, task, num_members)


def open_truth(root: Path, task: EnsembleTask, grid: Grid) -> DatedFields:
    path = root / task.truth_file
    if not path.is_file():
        raise DataError(f"{root} has no {task.truth_file}, the truth of {task.name}: put it there, or name its --truth")
    names = (task.target_variable.name, task.target_variable.grib_name)
    return DatedFields(path, names, task.level, task.target_variable.on_level(task.level), grid)


def open_efi(root: Path, task: EnsembleTask, grid: Grid) -> DatedFields | None:
    path = root / f"efi_{task.name}.nc"
    return DatedFields(path, ("efi",), None, _EFI, grid) if path.is_file() else None
