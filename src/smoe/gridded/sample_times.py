"""At which times a forecast can start: all times that its sample needs are there."""

from __future__ import annotations

import numpy as np

from smoe.errors import DataError


def check_hours(
    context_hours: tuple[int, ...],
    lead_hours: int | tuple[int, int],
    fixed_lead: int | None,
    start_every_hours: int | None,
    skip_hours: int,
    step_hours: int,
) -> None:
    """Refuses hours that make no sample or fall between steps; `WeatherSamples` says what they mean."""
    if not context_hours or min(context_hours) < 0 or list(context_hours) != sorted(set(context_hours), reverse=True):
        raise DataError(
            f"context_hours must be hours before the start, the longest first, such as 12 6 0; got {context_hours}"
        )
    if not isinstance(lead_hours, int) and lead_hours[0] > lead_hours[1]:
        raise DataError(f"a range of lead_hours goes from the smallest to the largest, got {lead_hours}")
    leads = (lead_hours,) if isinstance(lead_hours, int) else lead_hours
    leads = leads if fixed_lead is None else (*leads, fixed_lead)
    if min(leads) < 1:
        raise DataError(f"lead_hours must be positive, got {min(leads)}")
    if start_every_hours is not None and start_every_hours < 1:
        raise DataError(f"start_every_hours must be positive, got {start_every_hours}")
    if skip_hours < 0:
        raise DataError(f"skip_hours must not be negative, got {skip_hours}")
    every = () if start_every_hours is None else (start_every_hours,)
    for name, values in (("context_hours", context_hours), ("lead_hours", leads), ("start_every_hours", every)):
        for hours in values:
            if hours % step_hours:
                raise DataError(
                    f"{name} {hours} is not a multiple of the {step_hours} hours between steps of the store: choose "
                    f"a multiple of {step_hours}, or prepare a store with a smaller --step-hours"
                )


def find_starts(
    hours: np.ndarray, years: tuple[int, int], offsets: tuple[int, ...], every_hours: int | None, skip_hours: int
) -> np.ndarray:
    """Start times for which the times at all offsets are there and in the years.

    Args:
        hours: of the store's steps, since 1970, ascending.
        years: first and last.
        offsets: hours from a start to the times its sample needs.
        every_hours: distance of the starts, counted from 1970; None: every step.
        skip_hours: left out at the beginning of the first year.

    Returns:
        Hours since 1970, ascending.
    """
    begin = _new_year(years[0]) + skip_hours
    # A target in the years of another split would leak into this one.
    usable = hours[(hours >= begin) & (hours < _new_year(years[1] + 1))]
    starts = usable if every_hours is None else usable[usable % every_hours == 0]
    for offset in offsets:
        starts = starts[np.isin(starts + offset, usable, assume_unique=True)]
    return starts


def _new_year(year: int) -> int:
    return int(np.datetime64(f"{year:04d}-01-01", "h").astype(np.int64))
