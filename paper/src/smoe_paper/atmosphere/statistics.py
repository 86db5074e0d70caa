"""Statistics of fields, and the times that they are drawn from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from smoe.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor


PRECIPITATION = "tp"
PRECIPITATION_EPSILON = 0.001
"""In metres: rain well below it counts as nearly none, and well above it by its logarithm."""

# A year of a channel is converted to float64 in pieces of this many time steps, to bound the memory.
STEPS_PER_PIECE = 64

Values = TypeVar("Values", np.ndarray, "Tensor")


def transform(channel: str, values: np.ndarray) -> np.ndarray:
    """Returns what is normalised, float64: `ln(tp + eps) - ln(eps)` for precipitation, else the values themselves."""
    values = values.astype(np.float64)
    if channel != PRECIPITATION:
        return values
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(values + PRECIPITATION_EPSILON) - math.log(PRECIPITATION_EPSILON)


def undo_transform(channel: str, values: Values) -> Values:
    """The inverse of `transform`, for arrays and tensors."""
    if channel != PRECIPITATION:
        return values
    if isinstance(values, (np.ndarray, np.generic)):
        return np.expm1(values) * PRECIPITATION_EPSILON
    return values.expm1() * PRECIPITATION_EPSILON


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations of values that are added piece by piece, in float64."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, values: np.ndarray) -> Moments:
        """With the values of one more piece; NaNs do not count."""
        values = values[~np.isnan(values)]
        if not values.size:
            return self
        mean = float(values.mean(dtype=np.float64))
        return self.merge(Moments(values.size, mean, float(np.square(values - mean).sum(dtype=np.float64))))

    def merge(self, other: Moments) -> Moments:
        """Of both together. A plain sum of squares would lose the digits in which geopotential varies."""
        count = self.count + other.count
        if not count:
            return self
        distance = other.mean - self.mean
        return Moments(
            count,
            self.mean + distance * other.count / count,
            self.squares + other.squares + distance**2 * self.count * other.count / count,
        )

    def mean_and_std(self, channel: str) -> tuple[float, float]:
        """What the channel is normalised with; the mean of precipitation is forced to 0, so that no rain stays 0.

        Raises:
            DataError: if the channel does not vary, or holds no value.
        """
        if not self.count:
            raise DataError(f"channel {channel} holds no value in the statistics years: leave it out of --channels")
        std = math.sqrt(self.squares / self.count)
        # Rounding alone gives a constant a deviation of about 1e-16 of its size.
        if not std > 1e-9 * abs(self.mean):
            raise DataError(
                f"channel {channel} has the value {self.mean:g} everywhere in the statistics years and cannot be "
                "normalised: leave it out of --channels, or choose other --statistics-years"
            )
        return (0.0 if channel == PRECIPITATION else self.mean), std


def add_year(moments: Moments, channel: str, values: np.ndarray) -> Moments:
    """With all steps `(T, H, W)` of a year, in pieces."""
    for first in range(0, len(values), STEPS_PER_PIECE):
        moments = moments.add(transform(channel, values[first : first + STEPS_PER_PIECE]))
    return moments


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
