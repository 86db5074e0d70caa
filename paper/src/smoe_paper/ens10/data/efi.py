"""The extreme forecast index of the truth's climate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smoe_paper.ens10.data.fields import LEAD, years_of

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


@dataclass(frozen=True)
class Part:
    """A few rows of the grid in all forecasts of a year.

    Attributes:
        name: Name of the part.
        windows: Climate of each forecast of the year.
        rows: Rows of the grid.
    """

    name: str
    windows: dict[int, np.ndarray]
    rows: slice


def find_parts(
    starts: np.ndarray,
    years: tuple[int, int],
    shape: tuple[int, ...],
    bytes_per_part: int = _BYTES_PER_PART,
) -> list[Part]:
    """Divides all forecasts of some years into parts that fit in memory.

    Args:
        starts: Start dates of the forecasts, datetime64[D], `(T,)`.
        years: First and last start year.
        shape: Shape of the members, `(T, 10, H, W)`.
        bytes_per_part: Maximal memory of a part.
    """
    _, num_members, height, width = shape
    parts = []
    for year in range(years[0], years[1] + 1):
        windows = climate_windows(starts, year)
        if not windows:
            continue
        bytes_per_row = len(_used(windows)) * num_members * width * np.dtype(np.float32).itemsize
        num_rows = max(1, bytes_per_part // bytes_per_row)
        for first in range(0, height, num_rows):
            last = min(first + num_rows, height)
            parts.append(Part(f"efi {year} rows {first}-{last - 1}", windows, slice(first, last)))
    return parts


def compute_part(part: Part, members: np.ndarray, efi: np.ndarray) -> None:
    """Computes the index of a part.

    Args:
        part: Rows and forecasts to compute.
        members: Memory-mapped members, `(T, 10, H, W)`.
        efi: Memory-mapped index, `(T, H, W)`; its rows of the part are written.
    """
    used, rows = _used(part.windows), part.rows
    height, width = rows.stop - rows.start, members.shape[3]
    # Points first: the values of a point are adjacent and are sorted in cache.
    values = np.empty((height * width, len(used), members.shape[1]), np.float32)
    for place, index in enumerate(used):
        values[:, place] = members[index, :, rows].reshape(members.shape[1], -1).T
    for index, window in part.windows.items():
        climate = values[:, np.searchsorted(used, window)].reshape(len(values), -1)
        ensemble = values[:, int(np.searchsorted(used, index))]
        efi[index, rows] = extreme_forecast_index(climate, ensemble).reshape(height, width)


def _used(windows: dict[int, np.ndarray]) -> np.ndarray:
    return np.unique(np.concatenate(list(windows.values())))
