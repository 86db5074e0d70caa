"""Selects the steps of a year for a store."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smoe.errors import DataError
from smoe_paper.atmosphere.variables import VARIABLES, parse_channel
from smoe_paper.weather.data.missing_values import replace_missing
from smoe_paper.weather.data.source import WeatherSource
from smoe_paper.weather.data.store_format import NaNPolicy

# At the start of a record, sums over past hours are not defined yet: in WeatherBench they start at 07 h of 1979, and
# the sums over 6 hours 5 hours later. Rasp & Thuerey leave out the first 24 h.
_MAX_UNDEFINED_HOURS = 24


@dataclass(frozen=True)
class YearSpan:
    """Every `stride`-th step of a year of the source, from the step `first` on."""

    year: int
    first: int
    stride: int
    num_steps: int
    first_time: str

    @property
    def num_before(self) -> int:
        """Number of steps left out before the first, because a channel is not defined there."""
        return self.first // self.stride


def find_span(source: WeatherSource, year: int, channels: tuple[str, ...], step_hours: int) -> YearSpan:
    """Returns the steps at the hours 0, step, 2 * step, ... of each day at which every channel is defined."""
    times = source.times(year)
    first = _count_undefined(source, year, times, channels)
    hours = times[first:].astype("datetime64[h]").astype(np.int64)
    on_step = np.flatnonzero(hours % step_hours == 0)
    if not len(on_step):
        raise DataError(f"the year {year} has no step at a multiple of {step_hours} hours; choose another --step-hours")
    first += int(on_step[0])
    stride = step_hours // source.step_hours
    kept = times[first::stride]
    if not (np.diff(kept) == np.timedelta64(step_hours, "h")).all():
        raise DataError(f"the times of {year} are not {step_hours} hours apart everywhere: see smoe data check")
    return YearSpan(year, first, stride, len(kept), str(kept[0].astype("datetime64[h]")))


def read_span(source: WeatherSource, channel: str, span: YearSpan, on_nan: NaNPolicy) -> tuple[np.ndarray, int]:
    """Returns the fields `(T, H, W)` of a channel at these steps, and the number of replaced NaNs."""
    values, times = source.read(channel, span.year), source.times(span.year)
    expected = (len(times), *source.grid.shape)
    if values.shape != expected:
        raise DataError(f"{channel} of {span.year} has the shape {values.shape}, expected {expected}")
    kept = slice(span.first, None, span.stride)
    return replace_missing(channel, values[kept], times[kept], source.grid, on_nan)


def _count_undefined(source: WeatherSource, year: int, times: np.ndarray, channels: tuple[str, ...]) -> int:
    """Returns the number of leading steps at which a sum over past hours has no value anywhere."""
    if year - 1 in source.years:
        return 0
    most = 0
    longest = np.timedelta64(_MAX_UNDEFINED_HOURS, "h")
    for channel in channels:
        if VARIABLES[parse_channel(channel).variable].is_accumulated:
            values = source.read(channel, year)
            num_steps = next((step for step, field in enumerate(values) if not np.isnan(field).all()), len(values))
            is_short = num_steps < len(times) and times[num_steps] - times[0] <= longest
            most = max(most, num_steps if is_short else 0)
    return most
