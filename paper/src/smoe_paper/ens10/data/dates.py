"""Dates of the forecasts: twice a week, each valid 48 hours after its start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smoe.errors import DataError
from smoe_paper.atmosphere.axes import TIME_NAMES, find_axis
from smoe_paper.atmosphere.time_axis import as_minutes
from smoe_paper.ens10.data.variables import LEAD_DAYS

if TYPE_CHECKING:
    import xarray as xr

LEAD = np.timedelta64(LEAD_DAYS, "D")

# ENS-10 holds the hindcasts made with the Mondays and Thursdays of 2018: 105 days.
_DAYS_2018 = np.datetime64("2018-01-01") + np.arange(365)
START_DAYS = frozenset(str(day)[5:] for day in _DAYS_2018[np.isin(np.arange(365) % 7, (0, 3))])


def read_dates(array: xr.DataArray, where: str) -> tuple[str, np.ndarray]:
    """Returns the name of the time axis of a file, and its dates, datetime64[D], `(T,)`, ascending.

    The hour is ignored: the programs that made the files assign a day's statistics to any hour of the day.

    Raises:
        DataError: If there are no dates, a date occurs twice, or dates are not in order.
    """
    name = find_axis(array, TIME_NAMES, where)
    dates = as_minutes(array[name].values, where).astype("datetime64[D]")
    check_order(dates, where)
    return name, dates


def check_order(dates: np.ndarray, where: str) -> None:
    """Refuses dates that do not ascend."""
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
    """Refuses two files of one data set with different dates."""
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

    Args:
        starts: Start dates of the forecasts, datetime64[D].
        shape: Rows and columns of the grid.
    """
    if shape != (361, 720):
        return
    odd = [day for day in starts if str(day)[5:] not in START_DAYS]
    if odd:
        raise DataError(
            f"{len(odd)} of {len(starts)} forecasts do not start on a day of ENS-10: the first is valid on "
            f"{odd[0] + LEAD}, so started on {odd[0]}; times must be those the forecasts are for, 48 h after the start"
        )


def years_of(dates: np.ndarray) -> np.ndarray:
    """Returns the calendar year of each date."""
    return dates.astype("datetime64[Y]").astype(np.int64) + 1970
