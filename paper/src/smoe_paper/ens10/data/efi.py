"""The extreme forecast index: the distance of an ensemble from the model's own climate, in [-1, 1].

`EFI = 2 / pi * integral over p of (p - F(p)) / sqrt(p (1 - p))`, where F(p) is the share of the ensemble below the
climate's quantile p. It is computed as in ENS-10: 21 quantiles of climate and ensemble, a sum over the 19 inner ones
with dp = 0.05, and F(p) counted in the 21 quantiles of the ensemble, so that it is a multiple of 0.05. This coarse sum
keeps the index in [-0.79, 0.79].
"""

from __future__ import annotations

import numpy as np

NUM_QUANTILES = 21
WINDOW = 9
"""Number of forecast dates in a year around a date that belong to its climate."""
MIN_WINDOW = 5
"""Minimal number of these dates; with fewer, near the ends of a year, the index is not defined."""
CLIMATE_YEARS = 18
"""The climate includes this many years before the year of a forecast, and that year."""

_P = np.linspace(0.0, 1.0, NUM_QUANTILES)
_WEIGHTS = 2.0 / np.pi * (_P[1] - _P[0]) / np.sqrt(_P[1:-1] * (1.0 - _P[1:-1]))


def quantiles(sorted_values: np.ndarray) -> np.ndarray:
    """Returns the 21 quantiles of ascending values `(..., N)`, interpolated linearly, float32, `(..., 21)`."""
    place = _P * (sorted_values.shape[-1] - 1)
    below = np.floor(place).astype(np.int64)
    above = np.minimum(below + 1, sorted_values.shape[-1] - 1)
    low = sorted_values[..., below].astype(np.float64)
    return (low + (place - below) * (sorted_values[..., above] - low)).astype(np.float32)


def extreme_forecast_index(climate: np.ndarray, ensemble: np.ndarray) -> np.ndarray:
    """Returns the index at each point.

    Args:
        climate: All values of the climate at each point, `(P, N)`; sorted in place.
        ensemble: Members, `(P, M)`.

    Returns:
        Index, float32, `(P,)`.
    """
    climate.sort(axis=-1)
    of_climate = quantiles(climate)[:, 1:-1]
    of_ensemble = quantiles(np.sort(ensemble, axis=-1))[:, :-1]
    # searchsorted of each climate quantile among the ensemble's: the number of quantiles strictly below it.
    num_below = np.zeros(of_climate.shape, np.int64)
    for index in range(NUM_QUANTILES - 1):
        num_below += of_ensemble[:, index : index + 1] < of_climate
    return ((_P[1:-1] - _P[num_below]) @ _WEIGHTS).astype(np.float32)
