"""Files of ENS-10: fields of dates on a global grid, and members in GRIB and NetCDF."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smoe._integrity import check_grib_file
from smoe.errors import DataError
from smoe.gridded import damage_as_data_error, import_cfgrib, open_netcdf
from smoe_paper.atmosphere.axes import LATITUDE_NAMES, LONGITUDE_NAMES, TIME_NAMES, Grid, as_minutes, find_axis
from smoe_paper.atmosphere.files import OpenFiles, find_name, find_variable
from smoe_paper.atmosphere.variables import Variable, check_plausible, check_units
from smoe_paper.ens10.variables import LEAD_DAYS, NUM_MEMBERS, EnsembleTask, EnsembleVariable

if TYPE_CHECKING:
    import xarray as xr

LEAD = np.timedelta64(LEAD_DAYS, "D")

# ENS-10 holds the hindcasts made with the Mondays and Thursdays of 2018: 105 days.
_DAYS_2018 = np.datetime64("2018-01-01") + np.arange(365)
START_DAYS = frozenset(str(day)[5:] for day in _DAYS_2018[np.isin(np.arange(365) % 7, (0, 3))])


def read_dates(array: xr.DataArray, where: str) -> tuple[str, np.ndarray]:
    """Returns the name of the time axis of a file, and its dates, datetime64[D], `(T,)`, ascending.

    The hour is ignored: the programs that made the files assign a day's statistics to any hour of the day.
    """
    name = find_axis(array, TIME_NAMES, where)
    dates = as_minutes(array[name].values, where).astype("datetime64[D]")
    check_order(dates, where)
    return name, dates


def check_order(dates: np.ndarray, where: str) -> None:
    if not len(dates):
        raise DataError(f"{where} holds no dates")
    steps = np.diff(dates).astype(np.int64)
    for claim, odd in (
        ("the date {after} is there twice; expected each once", steps == 0),
        ("dates are not in order: {after} comes after {before}; sort the file by time", steps < 0),
    ):
        if odd.any():
            place = int(np.argmax(odd))
            said = claim.format(before=dates[place], after=dates[place + 1])
            raise DataError(f"{where}: {said} ({int(odd.sum())} such places)")


def check_same_dates(dates: np.ndarray, where: str, expected: np.ndarray, expected_where: str) -> None:
    if np.array_equal(dates, expected):
        return
    lacking, extra = np.setdiff1d(expected, dates), np.setdiff1d(dates, expected)
    said = [f"lacks {len(lacking)}, such as {lacking[0]}"] if len(lacking) else []
    said += [f"has {len(extra)} others, such as {extra[0]}"] if len(extra) else []
    raise DataError(
        f"{where} does not have the {len(expected)} dates of {expected_where}: it {' and '.join(said)}; make both from "
        "the same forecasts"
    )


def check_calendar(starts: np.ndarray, shape: tuple[int, int]) -> None:
    """Refuses start dates on ENS-10's grid that are not among ENS-10's days.

    This finds files with other times than those for which the forecasts are valid. Other grids are not checked.
    """
    if shape != (361, 720):
        return
    odd = [day for day in starts if str(day)[5:] not in START_DAYS]
    if odd:
        raise DataError(
            f"{len(odd)} of {len(starts)} forecasts do not start on a day of ENS-10: the first is valid on "
            f"{odd[0] + LEAD}, so started on {odd[0]}; times must be those the forecasts are for, 48 h after the start"
        )


class DatedFields:
    """Fields `(T, H, W)` of a file. The constructor checks the header, reading checks the values."""

    def __init__(
        self,
        files: OpenFiles,
        path: Path,
        names: tuple[str, ...],
        level: int | None,
        physics: Variable,
        grid: Grid | None = None,
        *,
        is_sea_only: bool = False,
    ) -> None:
        self._files, self._path, self._physics, self._is_sea_only = files, path, physics, is_sea_only
        dataset = files.get(path)
        name = find_name(dataset, path, names)
        self.where, self._level = f"{path}: {name}", level
        array = dataset[name]
        self.attributes = dict(dataset.attrs)
        with damage_as_data_error(path, name):
            self.grid = find_global_grid(array, self.where) if grid is None else grid
            self._time, self.dates = read_dates(array, self.where)
        self._variable = find_variable(dataset, path, name, self.grid, has_levels=level is not None)
        if level is not None:
            self._variable.level_index(level)
        check_units(physics, array.attrs.get("units"), self.where)
        self.notices = [notice for notice in self._variable.orientation.notices() if "turned round" in notice]

    def read(self, dates: np.ndarray) -> np.ndarray:
        """Returns the fields at some of `self.dates`, float32, `(T, H, W)`, from north to south."""
        index = np.searchsorted(self.dates, dates)
        is_there = self.dates[np.minimum(index, len(self.dates) - 1)] == dates
        if not is_there.all():
            first = dates[int(np.argmin(is_there))]
            raise DataError(
                f"{self.where} lacks {int((~is_there).sum())} of {len(dates)} dates, the first {first}; it has "
                f"{self.dates[0]} to {self.dates[-1]}"
            )
        first, last = int(index.min()), int(index.max()) + 1
        # A block of the file is read at once if the dates are adjacent, as in a preparation.
        is_block = last - first == len(dates)
        where = {self._time: slice(first, last) if is_block else index}
        fields = self._variable.read(self._files.get(self._path), self._time, where, self._level)
        if is_block:
            fields = fields[index - first]
        check_fields(fields, self._physics, dates, self.grid, self.where, is_sea_only=self._is_sea_only)
        return fields


# Land is 29 % of the globe and up to a third of the points of a coarse grid; lakes and ice may have values or not.
_MAX_LAND_SHARE = 0.6


def check_fields(
    fields: np.ndarray,
    physics: Variable,
    dates: np.ndarray,
    grid: Grid,
    where: str,
    *,
    is_sea_only: bool = False,
) -> None:
    """Refuses fields `(T, H, W)` with values that are infinite, implausible, or missing."""
    check_plausible(fields, physics, None, dates, where)
    is_missing = np.isnan(fields)
    if not is_missing.any():
        return
    share = is_missing.mean(axis=(1, 2))
    if is_sea_only and share.max() <= _MAX_LAND_SHARE:
        return
    step = int(np.argmax(share > (_MAX_LAND_SHARE if is_sea_only else 0.0)))
    row, column = np.unravel_index(int(is_missing[step].argmax()), is_missing[step].shape)
    land = ", more than land can be" if is_sea_only else ""
    raise DataError(
        f"{where} holds {int(is_missing.sum()):,} NaN, {is_missing.mean():.2%} of its values{land}, the first at "
        f"{dates[step]}, latitude {grid.latitude[row]:g}, longitude {grid.longitude[column]:g}: repair the file"
    )


ENS10_GRID = Grid(tuple(90.0 - 0.5 * row for row in range(361)), tuple(0.5 * column for column in range(720)))

_TOLERANCE_DEGREES = 1e-3


def find_global_grid(array: xr.DataArray, where: str) -> Grid:
    """Returns the grid of a data set's first field: ENS-10's, or any regular global grid."""
    rows = np.sort(np.asarray(array[find_axis(array, LATITUDE_NAMES, where)].values, np.float64))[::-1]
    columns = np.sort(np.mod(np.asarray(array[find_axis(array, LONGITUDE_NAMES, where)].values, np.float64), 360.0))
    return check_global(rows, columns, where)


def check_global(rows: np.ndarray, columns: np.ndarray, where: str) -> Grid:
    """Returns the grid of descending latitudes and ascending longitudes if it is global."""
    if len(rows) > 1 and len(columns) > 1:
        spacing = 360.0 / len(columns)
        is_even = np.max(np.abs(columns - spacing * np.arange(len(columns)))) <= _TOLERANCE_DEGREES
        is_symmetric = np.max(np.abs(rows + rows[::-1])) <= _TOLERANCE_DEGREES
        reaches_poles = 90.0 - rows[0] <= 1.5 * abs(rows[0] - rows[1])
        if is_even and is_symmetric and reaches_poles:
            if (len(rows), len(columns)) == ENS10_GRID.shape:
                return ENS10_GRID
            return Grid(tuple(map(float, rows)), tuple(map(float, columns)))
    raise DataError(
        f"{where} is on another grid: {len(rows)} latitudes from {rows[0]:g} to {rows[-1]:g} and {len(columns)} "
        f"longitudes from {columns[0]:g} to {columns[-1]:g}, expected ENS-10's 361 x 720 (90 to -90, 0 to 359.5) or "
        "another that covers the globe evenly; regrid it first"
    )


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
    """Opens a file and checks that each of its forecasts has ten members of every variable of the task."""
    opened = NetcdfMembers(file, task) if file.path.suffix == ".nc" else GribMembers(file, task)
    for start in opened.starts:
        fits = str(start)[5:] == str(file.date)[5:] if file.has_all_years else start == file.date
        if not fits:
            raise DataError(
                f"{file.path} holds a forecast that started on {start}, but its name says {file.date}; it was renamed "
                "or its dates are wrong"
            )
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
    # In float32, means of geopotential would lose the digits in which members differ.
    first = members[:num_members].astype(np.float64)
    return first.mean(axis=0).astype(np.float32), first.std(axis=0).astype(np.float32)


_STEP_HOURS = 24 * LEAD_DAYS
_KEYS = ("shortName", "dataDate:int", "dataTime:int", "endStep:int", "level:int", "number:int")
_GRID_KEYS = (
    "gridType",
    "Ni:int",
    "Nj:int",
    "iScansNegatively:int",
    "jScansPositively:int",
    "jPointsAreConsecutive:int",
    "latitudeOfFirstGridPointInDegrees:float",
    "latitudeOfLastGridPointInDegrees:float",
    "longitudeOfFirstGridPointInDegrees:float",
    "longitudeOfLastGridPointInDegrees:float",
)


class GribMembers:
    """Reads a file of one date, or a file as downloaded, which holds twenty years, three leads and eleven levels."""

    def __init__(self, file: MemberFile, task: EnsembleTask) -> None:
        messages = _import_messages()
        self._path = file.path
        with damage_as_data_error(file.path):
            check_grib_file(file.path)
            self._stream = messages.FileStream(str(file.path), errors="raise")
            # No index is written beside the data: the folder may be read-only, and an index may be out of date.
            index = messages.FileIndex.from_fieldset(self._stream, [*_KEYS, *_GRID_KEYS])
        self._offsets: dict[tuple[str, np.datetime64], dict[int, Any]] = {}
        wanted = {variable.grib_short_name for variable in task.variables}
        grids = set()
        for header, offsets in index.iter_index():
            name, date, hour, step, level, number, *grid = header
            if name not in wanted or step != _STEP_HOURS or (task.level is not None and level != task.level):
                continue
            start = _start(date, hour, file)
            members = self._offsets.setdefault((name, start), {})
            if len(offsets) > 1:
                raise DataError(f"{file.path} holds {name} of {start}, member {number}, {len(offsets)} times")
            members[number] = offsets[0]
            grids.add(tuple(grid))
        if not self._offsets:
            raise DataError(
                f"{file.path} holds no forecast of {', '.join(sorted(wanted))} for {_STEP_HOURS} h"
                + ("" if task.level is None else f" on {task.level} hPa")
            )
        if len(grids) > 1:
            raise DataError(f"{file.path} holds fields on {len(grids)} grids, expected one; regrid it first")
        self._read_grid(grids.pop())
        self.starts = np.array(sorted({start for _, start in self._offsets}), "datetime64[D]")
        for start in self.starts:
            for variable in task.variables:
                numbers = list(self._offsets.get((variable.grib_short_name, start), {}))
                check_numbers(numbers, f"{file.path}: {variable.grib_short_name} of {start}")

    def _read_grid(self, header: tuple[Any, ...]) -> None:
        kind, columns, rows, is_westward, is_northward, is_column_first, *_ = header
        where = str(self._path)
        if kind not in ("regular_ll", "regular_gg") or is_westward or is_column_first:
            raise DataError(f"{where} is on a grid of type {kind}, expected one in latitude and longitude; regrid it")
        self._is_northward = bool(is_northward)
        first = self._stream[next(iter(next(iter(self._offsets.values())).values()))]
        latitude = np.asarray(first["distinctLatitudes"], np.float64)
        longitude = np.asarray(first["distinctLongitudes"], np.float64)
        self._shape = (rows, columns)
        self._first_column = int(np.argmin(np.mod(longitude + 1e-6, 360.0)))
        self.grid = check_global(np.sort(latitude)[::-1], np.sort(np.mod(longitude, 360.0)), where)

    def read(self, variable: EnsembleVariable, start: np.datetime64) -> np.ndarray:
        offsets = self._offsets[variable.grib_short_name, start.astype("datetime64[D]")]
        members = np.empty((len(offsets), *self._shape), np.float32)
        with damage_as_data_error(self._path, f"{variable.grib_short_name} of {start}"):
            for place, number in enumerate(sorted(offsets)):
                message = self._stream[offsets[number]]
                values = np.asarray(message["values"])
                field = np.where(values == message["missingValue"], np.nan, values).reshape(self._shape)
                field = field[::-1] if self._is_northward else field
                members[place] = np.roll(field, -self._first_column, axis=1)
        return members


def _start(date: object, hour: object, file: MemberFile) -> np.datetime64:
    if not isinstance(date, int) or hour != 0:
        raise DataError(f"{file.path} holds a forecast from {date} at {hour}, expected starts at 0 h")
    text = f"{date:08d}"
    return np.datetime64(f"{text[:4]}-{text[4:6]}-{text[6:]}", "D")


def _import_messages() -> Any:
    import_cfgrib()
    from cfgrib import messages

    return messages


class NetcdfMembers:
    """Reads the members of one date. The file is small and is read whole."""

    def __init__(self, file: MemberFile, task: EnsembleTask) -> None:
        self._fields: dict[str, np.ndarray] = {}
        grid: Grid | None = None
        with damage_as_data_error(file.path), open_netcdf(file.path) as dataset:
            self.starts = _read_start(dataset["time"].values, dataset["valid_time"].values, str(file.path))
            for variable in task.variables:
                name, where = variable.grib_name, f"{file.path}: {variable.grib_name}"
                if name not in dataset.data_vars:
                    raise DataError(f"{file.path} has no {name}; it has {', '.join(map(str, dataset.data_vars))}")
                check_units(variable.physics, dataset[name].attrs.get("units"), where)
                grid = find_global_grid(dataset[name], where) if grid is None else grid
                found = find_variable(dataset, file.path, name, grid, has_levels=task.level is not None)
                numbers = [int(number) for number in np.atleast_1d(dataset[name]["number"].values)]
                check_numbers(numbers, where)
                self._fields[variable.name] = found.read(dataset, "number", {}, task.level)[np.argsort(numbers)]
        assert grid is not None
        self.grid = grid

    def read(self, variable: EnsembleVariable, start: np.datetime64) -> np.ndarray:  # noqa: ARG002 - of one start
        return self._fields[variable.name]


def _read_start(start: np.ndarray, valid: np.ndarray, where: str) -> np.ndarray:
    starts, valids = as_minutes(start, where), as_minutes(valid, where)
    if len(starts) != 1 or (valids - starts != LEAD).any():
        raise DataError(
            f"{where} holds forecasts from {starts[0]} for {valids[0]}, expected one start and a lead of 48 h"
        )
    return starts.astype("datetime64[D]")


OpenMembers = GribMembers | NetcdfMembers
