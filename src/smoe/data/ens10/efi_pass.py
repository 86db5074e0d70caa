"""The extreme forecast index of a store's forecasts, from its members, a few rows of the grid at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from smoe.data.ens10.dates import LEAD, years_of
from smoe.data.ens10.efi import CLIMATE_YEARS, MIN_WINDOW, WINDOW, extreme_forecast_index

# The climate of 19 years of 105 forecasts of 10 members at 720 longitudes takes 57 MB for each row of the grid.
_BYTES_PER_PART = 200_000_000


def climate_windows(starts: np.ndarray, year: int) -> dict[int, np.ndarray]:
    """For each forecast of a year, the forecasts that make its climate, as indices.

    The climate is of the years from 18 before to the year itself, of the nine start days around the forecast's; the
    days are those of the calendar on which a forecast starts in any of these years, as in ENS-10. Windows are cut at
    the ends of the calendar year, and a forecast with fewer than five days in its window is left out, as is one that
    is for the next year.
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


def compute_efi(
    members: np.ndarray,
    starts: np.ndarray,
    years: tuple[int, int],
    write: Callable[[int, int, np.ndarray], None],
    is_done: Callable[[str], bool],
    bytes_per_part: int = _BYTES_PER_PART,
) -> Iterator[str]:
    """Computes the index of all forecasts of some years.

    Args:
        members: `(T, 10, H, W)`, mapped.
        starts: of the forecasts, datetime64[D], `(T,)`.
        years: first and last start year.
        write: takes a forecast's index, the first row, and values `(rows, W)`.
        is_done: says whether a part was written before.
        bytes_per_part: bounds the memory.

    Yields:
        The name of each part once it is written or was before.
    """
    height, width = members.shape[2:]
    for year in range(years[0], years[1] + 1):
        windows = climate_windows(starts, year)
        used = np.unique(np.concatenate([np.empty(0, np.int64), *windows.values()]))
        bytes_per_row = max(len(used), 1) * members.shape[1] * width * members.itemsize
        num_rows = max(1, bytes_per_part // bytes_per_row)
        for first in range(0, height, num_rows):
            name = f"efi {year} rows {first}-{min(first + num_rows, height) - 1}"
            if not is_done(name):
                rows = slice(first, min(first + num_rows, height))
                _compute_part(members, windows, used, rows, write)
            yield name


def _compute_part(
    members: np.ndarray,
    windows: dict[int, np.ndarray],
    used: np.ndarray,
    rows: slice,
    write: Callable[[int, int, np.ndarray], None],
) -> None:
    height, width = rows.stop - rows.start, members.shape[3]
    # Points first: the values of a point lie side by side and are sorted in cache.
    values = np.empty((height * width, len(used), members.shape[1]), np.float32)
    for place, index in enumerate(used):
        values[:, place] = members[index, :, rows].reshape(members.shape[1], -1).T
    for index, window in windows.items():
        climate = values[:, np.searchsorted(used, window)].reshape(len(values), -1)
        ensemble = values[:, int(np.searchsorted(used, index))]
        write(index, rows.start, extreme_forecast_index(climate, ensemble).reshape(height, width))
