"""Global grids, and the axes of files of fields: time, levels, latitude and longitude."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from smoe.errors import DataError

if TYPE_CHECKING:
    import xarray as xr


TIME_NAMES = ("time", "valid_time")
LEVEL_NAMES = ("level", "plev", "pressure_level", "isobaricInhPa", "lev")
LATITUDE_NAMES = ("lat", "latitude")
LONGITUDE_NAMES = ("lon", "longitude")


@dataclass(frozen=True)
class Grid:
    """Points of a global grid."""

    latitude: tuple[float, ...]
    longitude: tuple[float, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.latitude), len(self.longitude)

    @property
    def degrees(self) -> float:
        return abs(self.latitude[1] - self.latitude[0])

    @property
    def name(self) -> str:
        # As WeatherBench calls it, such as 5.625deg.
        return f"{self.degrees:g}deg"

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

# Files keep coordinates in float32 or with the rounding of a regridding program.
_TOLERANCE_DEGREES = 1e-3


@dataclass(frozen=True)
class Orientation:
    """Orientation of the rows and columns of a file relative to a grid."""

    grid: Grid
    latitude: str
    longitude: str
    is_flipped: bool
    first_column: int

    def turn(self, fields: np.ndarray) -> np.ndarray:
        """Returns fields `(..., H, W)` in the order of the grid, contiguous float32."""
        if self.is_flipped:
            fields = fields[..., ::-1, :]
        if self.first_column:
            fields = np.roll(fields, -self.first_column, axis=-1)
        return np.ascontiguousarray(fields, dtype=np.float32)

    def notices(self) -> list[str]:
        # The changes that `turn` makes.
        said = []
        if (self.latitude, self.longitude) != ("lat", "lon"):
            said.append(f"axes are named {self.latitude}/{self.longitude}: read as lat/lon")
        if self.is_flipped:
            north, south = ("south", "north") if self.grid.latitude[0] > self.grid.latitude[-1] else ("north", "south")
            said.append(f"latitude runs {north} to {south}: turned round")
        if self.first_column:
            said.append("longitude does not start at 0: rolled so that it does")
        return said


def find_orientation(array: xr.DataArray, expected: Grid | None, where: str) -> Orientation:
    """Recognises the grid of a field: the expected one, or any of WeatherBench's if that is None."""
    latitude = find_axis(array, LATITUDE_NAMES, where)
    longitude = find_axis(array, LONGITUDE_NAMES, where)
    rows = np.asarray(array[latitude].values, np.float64)
    columns = np.asarray(array[longitude].values, np.float64)
    # A store may be on a grid of its own.
    grids = GRIDS if expected is None else {**GRIDS, expected.name: expected}
    for name, grid in grids.items():
        if (len(rows), len(columns)) != grid.shape:
            continue
        is_flipped = bool(rows[0] > rows[-1]) != (grid.latitude[0] > grid.latitude[-1])
        eastwards = np.mod(columns + _TOLERANCE_DEGREES, 360.0) - _TOLERANCE_DEGREES
        first_column = int(np.argmin(np.abs(eastwards)))
        if not _is_close(rows[::-1] if is_flipped else rows, grid.latitude):
            continue
        if not _is_close(np.roll(eastwards, -first_column), grid.longitude):
            continue
        if expected is not None and grid != expected:
            raise DataError(f"{where} is on the {name} grid, expected {expected.name}")
        return Orientation(grid, latitude, longitude, is_flipped, first_column)
    if expected is None:
        wanted = f"WeatherBench's ({', '.join(GRIDS)}: {'; '.join(_describe_grid(grid) for grid in GRIDS.values())})"
    else:
        wanted = f"{expected.name} ({_describe_grid(expected)})"
    raise DataError(
        f"{where} is on another grid: {len(rows)} latitudes from {rows[0]:g} to {rows[-1]:g} and {len(columns)} "
        f"longitudes from {columns[0]:g} to {columns[-1]:g}, expected {wanted}; regrid it first"
    )


def find_axis(array: xr.DataArray, names: tuple[str, ...], where: str) -> str:
    found = [name for name in names if name in array.dims]
    if len(found) != 1:
        raise DataError(f"{where} has the dimensions {tuple(array.dims)}, expected one named {' or '.join(names)}")
    if found[0] not in array.coords:
        raise DataError(f"{where} has no values for its dimension {found[0]!r}")
    return found[0]


def find_levels(array: xr.DataArray, where: str) -> tuple[str | None, tuple[int, ...], bool]:
    """Returns the name of the level axis, its levels in hPa, and whether the file gives them in Pa.

    A single level without an axis, as in WeatherBench's `geopotential_500`, has the name None.
    """
    found = [name for name in LEVEL_NAMES if name in array.dims] or [n for n in LEVEL_NAMES if n in array.coords]
    if len(found) != 1:
        raise DataError(
            f"{where} has the dimensions {tuple(array.dims)}, expected one named {' or '.join(LEVEL_NAMES)}"
        )
    values = np.atleast_1d(np.asarray(array[found[0]].values, np.float64)) if found[0] in array.coords else None
    if values is None or not np.isfinite(values).all():
        raise DataError(f"{where} has no pressure values for its dimension {found[0]!r}")
    units = str(array[found[0]].attrs.get("units", ""))
    # No level of 2000 hPa or more exists, and none that the library uses lies at 20 hPa or above.
    in_pascal = units == "Pa" if units in ("Pa", "hPa", "millibars", "mbar") else bool(values.max() > 2000.0)
    levels = np.rint(values / 100.0 if in_pascal else values)
    if len(set(levels.tolist())) < len(levels):
        raise DataError(f"{where} holds a level twice: {', '.join(f'{level:g}' for level in levels)} hPa")
    name = found[0] if found[0] in array.dims else None
    return name, tuple(int(level) for level in levels), in_pascal


def _is_close(values: np.ndarray, expected: tuple[float, ...]) -> bool:
    return bool(np.max(np.abs(values - np.asarray(expected))) <= _TOLERANCE_DEGREES)


def _describe_grid(grid: Grid) -> str:
    rows, columns = grid.shape
    return f"{rows} x {columns} from {grid.latitude[0]:g} N and {grid.longitude[0]:g} E"


# Calendars whose dates are those of datetime64 in the years that any archive covers.
_REAL_CALENDARS = ("standard", "gregorian", "proleptic_gregorian")


@dataclass(frozen=True)
class TimeAxis:
    """Times `start + i * step` for i below `count`, in minutes; `step` is 0 for a single time."""

    name: str
    start: np.datetime64
    step: int
    count: int

    @property
    def last(self) -> np.datetime64:
        return self.start + np.timedelta64(self.step * (self.count - 1), "m")

    def values(self) -> np.ndarray:
        return self.start + np.arange(self.count) * np.timedelta64(self.step, "m")

    def shifted(self, minutes: int) -> TimeAxis:
        return replace(self, start=self.start + np.timedelta64(minutes, "m"))

    def find(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns a mask of the `times` that are on the axis, and their positions on the axis."""
        minutes = (times.astype("datetime64[m]") - self.start).astype(np.int64)
        step = self.step or 1
        index = minutes // step
        on_axis = (minutes >= 0) & (index < self.count) & (minutes % step == 0)
        return on_axis, index[on_axis]


def read_time_axis(array: xr.DataArray, where: str) -> TimeAxis:
    name = find_axis(array, TIME_NAMES, where)
    times = as_minutes(array[name].values, where)
    if times.size == 0:
        raise DataError(f"{where} holds no times")
    if times.size == 1:
        return TimeAxis(name, times[0], 0, 1)
    steps = np.diff(times).astype(np.int64)
    usual = int(np.median(steps))
    for claim, odd in (
        ("the time {after} is there twice; expected each once", steps == 0),
        ("times are not in order: {after} comes after {before}; sort the file by time", steps < 0),
        ("times have a gap: {after} comes after {before}, expected steps of {usual} minutes", steps != usual),
    ):
        if odd.any():
            place = int(np.argmax(odd))
            said = claim.format(before=times[place], after=times[place + 1], usual=usual)
            raise DataError(f"{where}: {said} ({int(odd.sum())} such places)")
    return TimeAxis(name, times[0], usual, times.size)


def describe_short_year(year: int, num_times: int, step_hours: int) -> list[str]:
    whole = int((np.datetime64(f"{year + 1:04d}", "h") - np.datetime64(f"{year:04d}", "h")).astype(int)) // step_hours
    return [f"{year} has {num_times:,} of its {whole:,} times"] if num_times < whole else []


def as_minutes(values: np.ndarray, where: str) -> np.ndarray:
    """Returns the values of a time coordinate as datetime64[m], `(T,)`, in the order of the file."""
    values = np.atleast_1d(values)
    if np.issubdtype(values.dtype, np.datetime64):
        if np.isnat(values).any():
            raise DataError(f"{where}: {int(np.isnat(values).sum())} of {values.size} times have no value")
        # Days as floating-point numbers miss the minute by some nanoseconds.
        return (values.astype("datetime64[s]") + np.timedelta64(30, "s")).astype("datetime64[m]")
    calendar = getattr(values[0], "calendar", None) if values.size else None
    if calendar not in _REAL_CALENDARS:
        found = f"of the calendar {calendar!r}" if calendar else f"of type {values.dtype}, without units"
        raise DataError(f"{where}: times are {found}, expected real dates ({', '.join(_REAL_CALENDARS)})")
    return np.array([np.datetime64(time.isoformat(timespec="minutes"), "m") for time in values])
