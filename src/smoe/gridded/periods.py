"""Contiguous periods of times: what is trained on, validated and tested."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from smoe.errors import DataError
from smoe.gridded.time_labels import parse_date, show_time


@dataclass(frozen=True)
class Period:
    """A span of time.

    Attributes:
        start: First second.
        stop: First second after it.
        calendar: Calendar of both.
    """

    start: int
    stop: int
    calendar: str = "standard"

    def contains(self, seconds: np.ndarray) -> np.ndarray:
        """Whether times lie in the span, as booleans."""
        return (seconds >= self.start) & (seconds < self.stop)

    def __str__(self) -> str:
        """First and last time."""
        return f"{show_time(self.start, self.calendar)} to {show_time(self.stop - 1, self.calendar)}"


def parse_period(period: Any, calendar: str, first: int, last: int) -> Period:
    """Reads `1979:2015`, `2016`, `slice("1979", "2015")` or a period; both ends are included.

    Args:
        period: What is read.
        calendar: Calendar of the dates.
        first: First time there is, for a period without a beginning, such as `:2015`.
        last: Last time there is, for one without an end.

    Raises:
        DataError: If it cannot be read or ends before it begins.
    """
    if isinstance(period, Period):
        return period
    if isinstance(period, slice):
        if period.step is not None:
            raise DataError(f"a period is contiguous and has no step, got {period}")
        begin, end = period.start, period.stop
    elif isinstance(period, (tuple, list)) and len(period) == 2:
        begin, end = period
    else:
        begin, colon, end = str(period).partition(":")
        if colon and begin.count("-") == 2 and "T" in begin and len(end.split(":")) > 2:
            raise DataError(f"the period {period!r} has minutes: give it as a slice of two dates")
        end = end if colon else begin
    start = first if begin in (None, "") else parse_date(_text(begin), calendar)[0]
    stop = last + 1 if end in (None, "") else parse_date(_text(end), calendar)[1]
    if stop <= start:
        raise DataError(f"the period {period!r} ends before it begins")
    return Period(start, stop, calendar)


def _text(date: Any) -> str:
    return str(date).replace(" ", "T") if not isinstance(date, str) else date


def check_apart(periods: Mapping[str, Period]) -> None:
    """Refuses periods that overlap.

    Raises:
        DataError: With the two periods.
    """
    ordered = sorted(periods.items(), key=lambda item: item[1].start)
    for (name, period), (later_name, later) in itertools.pairwise(ordered):
        if later.start < period.stop:
            raise DataError(
                f"{name} ({period}) and {later_name} ({later}) overlap: choose periods apart from each other"
            )


def samples_in(starts: np.ndarray, targets: np.ndarray, period: Period) -> np.ndarray:
    """Whether both the input and the target of a sample lie in a period.

    So that no target of one period is an input of another: the inputs of two periods are at least the lead apart.
    """
    return period.contains(starts) & period.contains(targets)


def remaining_samples(starts: np.ndarray, targets: np.ndarray, others: Mapping[str, Period]) -> np.ndarray:
    """Samples apart from all given periods: their targets lie before a period, or their inputs after it.

    Args:
        starts: Times of the inputs.
        targets: Times of the targets.
        others: Periods to keep away from.
    """
    kept = np.ones(len(starts), dtype=bool)
    for period in others.values():
        kept &= (targets < period.start) | (starts >= period.stop)
    return kept


def split_off_last(starts: np.ndarray, targets: np.ndarray, share: float, calendar: str) -> Period:
    """The last share of the times as a period, for validation where none is given."""
    times = np.unique(np.concatenate([starts, targets]))
    begin = int(times[min(int(len(times) * (1.0 - share)), len(times) - 1)])
    return Period(begin, int(times[-1]) + 1, calendar)
