"""Fields of files on global grids, with axes of one name and direction, whichever way a file has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smoe.errors import DataError
from smoe.gridded import are_same_units, damage_as_data_error
from smoe_paper.atmosphere.variables import Variable

if TYPE_CHECKING:
    import xarray as xr

_SPELLINGS = {
    "time": ("time", "valid_time"),
    "level": ("level", "plev", "pressure_level", "isobaricInhPa", "lev"),
    "lat": ("lat", "latitude"),
    "lon": ("lon", "longitude"),
}
# Files keep coordinates in float32 or with the rounding of a regridding program.
_TOLERANCE_DEGREES = 1e-3


@dataclass(frozen=True)
class Grid:
    """Points of a global grid."""

    latitude: tuple[float, ...]
    longitude: tuple[float, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.latitude), len(self.longitude)

    def __str__(self) -> str:
        (north, *_, south), (west, *_, east) = self.latitude, self.longitude
        rows, columns = self.shape
        return f"{rows} latitudes from {north:g} to {south:g} and {columns} longitudes from {west:g} to {east:g}"

    def is_close(self, other: Grid) -> bool:
        pairs = ((self.latitude, other.latitude), (self.longitude, other.longitude))
        return self.shape == other.shape and all(np.allclose(*pair, rtol=0, atol=_TOLERANCE_DEGREES) for pair in pairs)


def find_field(
    dataset: xr.Dataset,
    path: Path,
    names: Sequence[str],
    variable: Variable,
    grid: Grid | None,
    *,
    dims: tuple[str, ...] = ("time",),
    north_first: bool = False,
) -> tuple[xr.DataArray, Grid]:
    """The first of some names in a file, `(*dims, lat, lon)` or `(*dims, level, lat, lon)`, still on disk.

    Latitudes run from the south unless `north_first`, longitudes from 0 eastwards, levels are in hPa. The grid must be
    the given one, or any that covers the globe evenly if that is None.
    """
    name = next((name for name in names if name in dataset.data_vars), None)
    if name is None:
        found = ", ".join(map(str, dataset.data_vars)) or "no variable"
        raise DataError(f"{path} holds {found}, expected {' or '.join(names)}")
    array, where = dataset[name], f"{path}: {name}"
    units = str(array.attrs.get("units", "")).strip()
    accepted = (variable.units, variable.other_units or variable.units)
    # A file without units passes: its values are checked.
    if units and not any(are_same_units(units, each) for each in accepted):
        raise DataError(f"{where} is in {units!r}, expected {variable.units!r}; convert the file first")
    wanted = (*dims, *(["level"] if variable.has_levels else []), "lat", "lon")
    with damage_as_data_error(path, name):
        for axis in (axis for axis in wanted if axis in _SPELLINGS):
            # A single level or time may be a coordinate without an axis.
            found = [each for each in _SPELLINGS[axis] if each in array.dims] or [
                each for each in _SPELLINGS[axis] if each in array.coords
            ]
            if not found or found[0] not in array.coords:
                raise DataError(
                    f"{where} has the dimensions {tuple(array.dims)}, expected one with values named "
                    f"{' or '.join(_SPELLINGS[axis])}"
                )
            array = array.rename({found[0]: axis} if found[0] != axis else {})
            array = array if axis in array.dims else array.expand_dims(axis)
        long = [each for each in array.dims if each not in wanted and array.sizes[each] > 1]
        if long:
            raise DataError(f"{where} has the dimension {long[0]!r}; choose one of its entries")
        array = array.isel({each: 0 for each in array.dims if each not in wanted}).transpose(*wanted)
        if variable.has_levels:
            array = array.assign_coords(level=_levels(array, where))
        rows, columns = (np.asarray(array[axis].values, np.float64) for axis in ("lat", "lon"))
    columns = np.mod(columns + _TOLERANCE_DEGREES, 360.0) - _TOLERANCE_DEGREES
    if (rows[0] < rows[-1]) == north_first:
        array, rows = array.isel(lat=slice(None, None, -1)), rows[::-1]
    if (first := int(np.argmin(np.abs(columns)))) > 0:
        # `DataArray.roll` would read all of it.
        array, columns = array.isel(lon=np.roll(np.arange(len(columns)), -first)), np.roll(columns, -first)
    here = Grid(tuple(rows.tolist()), tuple(columns.tolist()))
    if grid is not None and not here.is_close(grid):
        raise DataError(f"{where} is on another grid than the first file: {here}, expected {grid}; regrid it first")
    return array, check_global(here, where) if grid is None else grid


def check_global(grid: Grid, where: str) -> Grid:
    """Refuses a grid that does not cover the globe evenly."""
    rows, columns = np.array(grid.latitude), np.array(grid.longitude)
    evenly = Grid(tuple(-rows[::-1]), tuple(360.0 / len(columns) * np.arange(len(columns))))
    if len(rows) < 2 or not grid.is_close(evenly) or 90.0 - np.abs(rows).max() > 1.5 * abs(rows[0] - rows[1]):
        raise DataError(
            f"{where} is on another grid: {grid}, expected one that covers the globe evenly, with longitudes from 0; "
            "regrid it first"
        )
    return grid


def _levels(array: xr.DataArray, where: str) -> np.ndarray:
    values, units = np.asarray(array.level.values, np.float64), str(array.level.attrs.get("units", ""))
    # No level of 2000 hPa or more exists, and none that is used lies at 20 hPa or above.
    in_pascal = units == "Pa" if units in ("Pa", "hPa", "millibars", "mbar") else bool(values.max() > 2000.0)
    levels = np.rint(values / 100.0 if in_pascal else values).astype(int)
    if len(set(levels.tolist())) < len(levels):
        raise DataError(f"{where} holds a level twice: {', '.join(map(str, levels))} hPa")
    return levels


def on_level(array: xr.DataArray, level: int | None, where: str) -> xr.DataArray:
    """The fields of one level in hPa; the array itself for None."""
    if level is None:
        return array
    if level not in array.level:
        raise DataError(f"{where} has no level {level} hPa; it has {', '.join(map(str, array.level.values))}")
    return array.sel(level=level)


def real_dates(values: np.ndarray, where: str) -> np.ndarray:
    """The values of a time coordinate, ascending, as datetime64[m]."""
    values = np.atleast_1d(values)
    if not np.issubdtype(values.dtype, np.datetime64) or np.isnat(values).any():
        raise DataError(
            f"{where}: times are of type {values.dtype}, such as {values[:1]}, expected dates of the standard calendar"
        )
    # Days as floating-point numbers miss the minute by some nanoseconds.
    times = (values.astype("datetime64[s]") + np.timedelta64(30, "s")).astype("datetime64[m]")
    check_order(times, where)
    return times


def check_order(times: np.ndarray, where: str) -> None:
    steps = np.diff(times).astype(np.int64)
    if not len(times) or (steps <= 0).any():
        place = int(np.argmax(steps <= 0)) if len(steps) else 0
        said = f"{times[place + 1]} comes after {times[place]}" if len(times) else "there are none"
        raise DataError(f"{where}: times must ascend, each once, but {said}")


def years_of(times: np.ndarray) -> np.ndarray:
    return times.astype("datetime64[Y]").astype(np.int64) + 1970


def describe_years(years: Sequence[int]) -> str:
    """Returns years as ranges: `1979-1981, 1983`."""
    parts: list[list[int]] = []
    for year in years:
        if parts and parts[-1][1] == year - 1:
            parts[-1][1] = year
        else:
            parts.append([year, year])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts) or "none"
