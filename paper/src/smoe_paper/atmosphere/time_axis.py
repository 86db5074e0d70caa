"""Regular times of a file, held as start, step and count."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from smoe.errors import DataError
from smoe_paper.atmosphere.axes import TIME_NAMES, find_axis

if TYPE_CHECKING:
    import xarray as xr

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
        """Returns the last time."""
        return self.start + np.timedelta64(self.step * (self.count - 1), "m")

    def values(self) -> np.ndarray:
        """Returns all times, datetime64[m]."""
        return self.start + np.arange(self.count) * np.timedelta64(self.step, "m")

    def shifted(self, minutes: int) -> TimeAxis:
        """Returns the same times, later by some minutes."""
        return replace(self, start=self.start + np.timedelta64(minutes, "m"))

    def find(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns a mask of the `times` that are on the axis, and their positions on the axis."""
        minutes = (times.astype("datetime64[m]") - self.start).astype(np.int64)
        step = self.step or 1
        index = minutes // step
        on_axis = (minutes >= 0) & (index < self.count) & (minutes % step == 0)
        return on_axis, index[on_axis]


def read_time_axis(array: xr.DataArray, where: str) -> TimeAxis:
    """Returns the times of a field.

    Raises:
        DataError: If there are no times, or they have another calendar, are out of order, repeated or have a gap.
    """
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
    """Reports an incomplete year."""
    whole = int((np.datetime64(f"{year + 1:04d}", "h") - np.datetime64(f"{year:04d}", "h")).astype(int)) // step_hours
    return [f"{year} has {num_times:,} of its {whole:,} times"] if num_times < whole else []


def as_minutes(values: np.ndarray, where: str) -> np.ndarray:
    """Returns the values of a time coordinate as datetime64[m], `(T,)`, in the order of the file.

    Raises:
        DataError: If the calendar is another one, or a time has no units or no value.
    """
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
