"""Fields of NetCDF files on global grids: axes, times and values, whichever way their axes run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smoe.errors import DataError
from smoe.gridded import damage_as_data_error, open_netcdf

if TYPE_CHECKING:
    import xarray as xr

TIME_NAMES = ("time", "valid_time")
LEVEL_NAMES = ("level", "plev", "pressure_level", "isobaricInhPa", "lev")
LATITUDE_NAMES = ("lat", "latitude")
LONGITUDE_NAMES = ("lon", "longitude")
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

    def lat2d(self) -> np.ndarray:
        return np.repeat(np.asarray(self.latitude, np.float32)[:, None], self.shape[1], axis=1)

    def lon2d(self) -> np.ndarray:
        return np.repeat(np.asarray(self.longitude, np.float32)[None, :], self.shape[0], axis=0)


def _regular_grid(degrees: float) -> Grid:
    rows, columns = round(180 / degrees), round(360 / degrees)
    # All three spacings are multiples of 2^-5, so that these values are exact.
    latitude = tuple(-90.0 + degrees / 2 + degrees * row for row in range(rows))
    return Grid(latitude, tuple(degrees * column for column in range(columns)))


GRIDS: dict[str, Grid] = {f"{degrees:g}deg": _regular_grid(degrees) for degrees in (5.625, 2.8125, 1.40625)}
"""WeatherBench's grids by their names."""

ENS10_GRID = Grid(tuple(90.0 - 0.5 * row for row in range(361)), tuple(0.5 * column for column in range(720)))


def find_axis(array: xr.DataArray, names: tuple[str, ...], where: str) -> str:
    found = [name for name in names if name in array.dims]
    if len(found) != 1:
        raise DataError(f"{where} has the dimensions {tuple(array.dims)}, expected one named {' or '.join(names)}")
    if found[0] not in array.coords:
        raise DataError(f"{where} has no values for its dimension {found[0]!r}")
    return found[0]


@dataclass(frozen=True)
class FileVariable:
    """Place of a variable in a file, and how its rows and columns lie on the grid."""

    path: Path
    name: str
    grid: Grid
    latitude: str
    longitude: str
    is_flipped: bool
    first_column: int
    level_axis: str | None = None
    levels: tuple[int, ...] = ()

    def check_level(self, level: int | None) -> None:
        if level is not None and level not in self.levels:
            raise DataError(f"{self.path} has no level {level} hPa; it has {', '.join(map(str, self.levels))}")

    def read(self, dataset: xr.Dataset, dim: str, where: Mapping[Any, Any], level: int | None = None) -> np.ndarray:
        """Returns fields `(dim, H, W)` in the order of the grid, float32."""
        self.check_level(level)
        if self.level_axis is not None and level is not None:
            where = {**where, self.level_axis: self.levels.index(level)}
        dims = tuple(each for each in (dim, self.latitude, self.longitude) if each)
        with damage_as_data_error(self.path, self.name):
            array = dataset[self.name].isel(where)
            long = [each for each in array.dims if each not in dims and array.sizes[each] > 1]
            if long:
                raise DataError(f"{self.path}: {self.name} has the dimension {long[0]!r}; choose one of its entries")
            array = array.isel({other: 0 for other in array.dims if other not in dims}).transpose(*dims)
            fields = array.values
        fields = fields[..., ::-1, :] if self.is_flipped else fields
        return np.ascontiguousarray(np.roll(fields, -self.first_column, axis=-1), dtype=np.float32)


def find_variable(
    dataset: xr.Dataset,
    path: Path,
    names: Sequence[str],
    grid: Grid | None,
    *,
    has_levels: bool,
    is_north_first: bool = False,
) -> FileVariable:
    """Finds the first of some names in a file; its grid must be the given one, or any global one if that is None."""
    name = next((name for name in names if name in dataset.data_vars), None)
    if name is None:
        found = ", ".join(map(str, dataset.data_vars)) or "no variable"
        raise DataError(f"{path} holds {found}, expected {' or '.join(names)}")
    array, where = dataset[name], f"{path}: {name}"
    with damage_as_data_error(path, name):
        latitude, longitude = (find_axis(array, names, where) for names in (LATITUDE_NAMES, LONGITUDE_NAMES))
        rows, columns = (np.asarray(array[axis].values, np.float64) for axis in (latitude, longitude))
        levels = _find_levels(array, where) if has_levels else (None, ())
    eastwards = np.mod(columns + _TOLERANCE_DEGREES, 360.0) - _TOLERANCE_DEGREES
    first_column = int(np.argmin(np.abs(eastwards)))
    is_flipped = bool(rows[0] < rows[-1]) == is_north_first
    place = (rows[::-1] if is_flipped else rows, np.roll(eastwards, -first_column))
    found = check_global(*place, where) if grid is None else grid
    if not _is_close(place, found):
        raise DataError(
            f"{where} is on another grid than the first file: {_describe(*place)}, expected "
            f"{_describe(np.array(found.latitude), np.array(found.longitude))}; regrid it first"
        )
    return FileVariable(path, name, found, latitude, longitude, is_flipped, first_column, *levels)


def check_global(rows: np.ndarray, columns: np.ndarray, where: str) -> Grid:
    """Returns the grid of some latitudes and ascending longitudes if it covers the globe evenly."""
    for known in (*GRIDS.values(), ENS10_GRID):
        if _is_close((rows, columns), known):
            return known
    if len(rows) > 1 and len(columns) > 1:
        is_even = np.max(np.abs(columns - 360.0 / len(columns) * np.arange(len(columns)))) <= _TOLERANCE_DEGREES
        is_symmetric = np.max(np.abs(rows + rows[::-1])) <= _TOLERANCE_DEGREES
        if is_even and is_symmetric and 90.0 - np.abs(rows).max() <= 1.5 * abs(rows[0] - rows[1]):
            return Grid(tuple(map(float, rows)), tuple(map(float, columns)))
    raise DataError(
        f"{where} is on another grid: {_describe(rows, columns)}, expected one that covers the globe evenly, with "
        "longitudes from 0; regrid it first"
    )


def _is_close(place: tuple[np.ndarray, np.ndarray], grid: Grid) -> bool:
    axes = (np.array(grid.latitude), np.array(grid.longitude))
    same = [len(mine) == len(theirs) for mine, theirs in zip(place, axes, strict=True)]
    return all(same) and all(
        bool(np.max(np.abs(mine - theirs)) <= _TOLERANCE_DEGREES) for mine, theirs in zip(place, axes, strict=True)
    )


def _describe(rows: np.ndarray, columns: np.ndarray) -> str:
    return (
        f"{len(rows)} latitudes from {rows[0]:g} to {rows[-1]:g} and {len(columns)} longitudes from {columns[0]:g} to "
        f"{columns[-1]:g}"
    )


def _find_levels(array: xr.DataArray, where: str) -> tuple[str | None, tuple[int, ...]]:
    """Returns the level axis, None for a single level without one, and the levels in hPa."""
    found = [name for name in LEVEL_NAMES if name in array.dims] or [n for n in LEVEL_NAMES if n in array.coords]
    if len(found) != 1 or found[0] not in array.coords:
        raise DataError(
            f"{where} has the dimensions {tuple(array.dims)}, expected one with values named {' or '.join(LEVEL_NAMES)}"
        )
    values = np.atleast_1d(np.asarray(array[found[0]].values, np.float64))
    units = str(array[found[0]].attrs.get("units", ""))
    # No level of 2000 hPa or more exists, and none that is used lies at 20 hPa or above.
    in_pascal = units == "Pa" if units in ("Pa", "hPa", "millibars", "mbar") else bool(values.max() > 2000.0)
    levels = tuple(int(level) for level in np.rint(values / 100.0 if in_pascal else values))
    if len(set(levels)) < len(levels):
        raise DataError(f"{where} holds a level twice: {', '.join(map(str, levels))} hPa")
    return found[0] if found[0] in array.dims else None, levels


def read_times(array: xr.DataArray, where: str, unit: str = "m") -> tuple[str, np.ndarray]:
    """Returns the name of the time axis and its times, ascending, rounded to the minute and cut to the unit."""
    name = find_axis(array, TIME_NAMES, where)
    times = as_minutes(array[name].values, where).astype(f"datetime64[{unit}]")
    check_order(times, where)
    return name, times


def check_order(times: np.ndarray, where: str) -> None:
    steps = np.diff(times).astype(np.int64)
    if not len(times) or (steps <= 0).any():
        place = int(np.argmax(steps <= 0)) if len(steps) else 0
        said = f"{times[place + 1]} comes after {times[place]}" if len(times) else "there are none"
        raise DataError(f"{where}: times must ascend, each once, but {said}")


def as_minutes(values: np.ndarray, where: str) -> np.ndarray:
    """Returns the values of a time coordinate as datetime64[m]."""
    values = np.atleast_1d(values)
    if np.issubdtype(values.dtype, np.datetime64) and not np.isnat(values).any():
        # Days as floating-point numbers miss the minute by some nanoseconds.
        return (values.astype("datetime64[s]") + np.timedelta64(30, "s")).astype("datetime64[m]")
    calendar = getattr(values[0], "calendar", None) if values.size else None
    if calendar not in ("standard", "gregorian", "proleptic_gregorian"):
        found = f"of the calendar {calendar!r}" if calendar else f"of type {values.dtype}, without units or values"
        raise DataError(f"{where}: times are {found}, expected real dates")
    return np.array([np.datetime64(time.isoformat(timespec="minutes"), "m") for time in values])


class OpenFiles:
    """NetCDF files that stay open; xarray itself closes those that were not used for long."""

    def __init__(self) -> None:
        self._open: dict[Path, xr.Dataset] = {}

    def __getitem__(self, path: Path) -> xr.Dataset:
        if path not in self._open:
            with damage_as_data_error(path):
                self._open[path] = open_netcdf(path)
        return self._open[path]


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
