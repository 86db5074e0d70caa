"""One mean and one standard deviation per channel, and the transform of precipitation before them (Rasp & Thuerey).

Rasp & Thuerey take their statistics from every 30,000th hour of the training years; here every step counts.
"""

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
