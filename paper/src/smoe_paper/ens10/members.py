"""The members of ENS-10 in GRIB and NetCDF files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smoe._integrity import check_grib_file
from smoe.errors import DataError
from smoe.gridded import damage_as_data_error, import_cfgrib, open_netcdf
from smoe_paper.atmosphere.axes import Grid, as_minutes
from smoe_paper.atmosphere.files import find_variable
from smoe_paper.atmosphere.variables import check_units
from smoe_paper.ens10.fields import LEAD, check_fields, check_global, find_global_grid
from smoe_paper.ens10.variables import LEAD_DAYS, NUM_MEMBERS, EnsembleTask, EnsembleVariable

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
