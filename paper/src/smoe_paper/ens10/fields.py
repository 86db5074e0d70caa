"""Fields of dates on a global grid, checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smoe.errors import DataError
from smoe.gridded import damage_as_data_error
from smoe_paper.atmosphere.axes import LATITUDE_NAMES, LONGITUDE_NAMES, TIME_NAMES, Grid, as_minutes, find_axis
from smoe_paper.atmosphere.files import OpenFiles, find_name, find_variable
from smoe_paper.atmosphere.variables import Variable, check_plausible, check_units
from smoe_paper.ens10.variables import LEAD_DAYS

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
