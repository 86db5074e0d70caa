"""The dates on which forecasts start: ENS-10's days of the calendar, the Mondays and Thursdays of 2018."""

from __future__ import annotations

import numpy as np

LEAD_DAYS = 2
_DAYS_OF_2018 = np.datetime64("2018-01-01") + np.arange(365)
_START_DAYS = tuple(str(day)[5:] for day in _DAYS_OF_2018 if (day - _DAYS_OF_2018[0]).astype(int) % 7 in (0, 3))


def start_dates(first: np.datetime64, last: np.datetime64, every: int = 1) -> list[np.datetime64]:
    """All starts from one day to another, both included; the same days in each year.

    Args:
        first: First day.
        last: Last day.
        every: 1 takes all 105 days of a year, 2 every second one, 53, and so on.
    """
    years = range(_year(first), _year(last) + 1)
    starts = [np.datetime64(f"{year}-{day}", "D") for year in years for day in _START_DAYS[::every]]
    return [start for start in starts if first <= start <= last]


def _year(day: np.datetime64) -> int:
    return int(str(day)[:4])
