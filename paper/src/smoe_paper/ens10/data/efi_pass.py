"""Computes the extreme forecast index of a store's forecasts from its members, a few rows of the grid at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smoe_paper.ens10.data.dates import LEAD, years_of
from smoe_paper.ens10.data.efi import CLIMATE_YEARS, MIN_WINDOW, WINDOW, extreme_forecast_index

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
