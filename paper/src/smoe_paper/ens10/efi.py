"""The extreme forecast index of the truth's climate."""

from __future__ import annotations

import numpy as np

from smoe_paper.atmosphere.fields import years_of
from smoe_paper.ens10.source import LEAD

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
    """Returns the index at each point, float32, `(P,)`."""
    climate.sort(axis=-1)
    of_climate = quantiles(climate)[:, 1:-1]
    of_ensemble = quantiles(np.sort(ensemble, axis=-1))[:, :-1]
    # searchsorted of each climate quantile among the ensemble's: the number of quantiles strictly below it.
    num_below = np.zeros(of_climate.shape, np.int64)
    for index in range(NUM_QUANTILES - 1):
        num_below += of_ensemble[:, index : index + 1] < of_climate
    return ((_P[1:-1] - _P[num_below]) @ _WEIGHTS).astype(np.float32)


# The climate of 19 years of 105 forecasts of 10 members at 720 longitudes takes 57 MB for each row of the grid.
_BYTES_PER_PART = 200_000_000


def climate_windows(starts: np.ndarray, year: int) -> dict[int, np.ndarray]:
    """Returns, for each forecast of a year, the indices of the forecasts that make up its climate.

    The climate covers 19 years up to the forecast's own, and the nine start days around the forecast's; the days are
    those of the calendar on which a forecast starts in any of these years, as in ENS-10. Windows are cut at the ends
    of the calendar year. Forecasts with fewer than five days in their window, and those that are valid in the next
    year, are left out.
    """
    years = years_of(starts)
    in_climate = (years >= year - CLIMATE_YEARS) & (years <= year)
    day_of = np.array([str(start)[5:] for start in starts])
    days = np.unique(day_of[in_climate])
    place = np.searchsorted(days, day_of)
    windows = {}
    for index in np.flatnonzero((years == year) & (years_of(starts + LEAD) == year)):
        near = in_climate & (np.abs(place - place[index]) <= WINDOW // 2)
        if len(np.unique(place[near])) >= MIN_WINDOW:
            windows[int(index)] = np.flatnonzero(near)
    return windows


def parts_of(windows: dict[int, np.ndarray], shape: tuple[int, ...], num_bytes: int = _BYTES_PER_PART) -> list[slice]:
    """Returns the rows of the grid in parts whose climate fits in memory, for members of shape `(T, 10, H, W)`."""
    _, num_members, height, width = shape
    bytes_per_row = len(_used(windows)) * num_members * width * np.dtype(np.float32).itemsize
    num_rows = max(1, num_bytes // bytes_per_row)
    return [slice(first, min(first + num_rows, height)) for first in range(0, height, num_rows)]


def compute_part(windows: dict[int, np.ndarray], rows: slice, members: np.ndarray) -> dict[int, np.ndarray]:
    """Returns the index of each forecast of a year in some rows of the grid, float32, `(rows, W)`."""
    used = _used(windows)
    # Points first: the values of a point are adjacent and are sorted in cache.
    values = np.stack([members[index][:, rows].reshape(members.shape[1], -1).T for index in used], axis=1)
    found = {}
    for index, window in windows.items():
        climate = values[:, np.searchsorted(used, window)].reshape(len(values), -1)
        ensemble = values[:, int(np.searchsorted(used, index))]
        found[index] = extreme_forecast_index(climate, ensemble).reshape(rows.stop - rows.start, -1)
    return found


def _used(windows: dict[int, np.ndarray]) -> np.ndarray:
    return np.unique(np.concatenate(list(windows.values())))
