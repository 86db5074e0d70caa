"""The extreme forecast index of a simulated ensemble, in the files that ENS-10 has it in."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from simulation import ens10_layout

# As in ENS-10: the climate of a forecast covers 19 years up to its own, and the nine start days around its own, cut at
# the ends of the calendar year. With fewer than five days there is no index.
CLIMATE_YEARS = 18
WINDOW, MIN_WINDOW = 9, 5
_P = np.linspace(0.0, 1.0, 21)
_WEIGHTS = 2.0 / np.pi * 0.05 / np.sqrt(_P[1:-1] * (1.0 - _P[1:-1]))


def extreme_forecast_index(climate: np.ndarray, ensemble: np.ndarray) -> np.ndarray:
    """The index at each point of a climate and an ensemble `(values, ...)`, float32: a sum of 19 terms."""
    of_climate = np.quantile(climate.astype(np.float64), _P, axis=0).astype(np.float32)[1:-1]
    of_ensemble = np.quantile(ensemble.astype(np.float64), _P, axis=0).astype(np.float32)[:-1]
    num_below = (of_ensemble[:, None] < of_climate[None]).sum(axis=0)
    return np.tensordot(_WEIGHTS, _P[1:-1].reshape(-1, *[1] * (climate.ndim - 1)) - _P[num_below], 1).astype(np.float32)


def climate_windows(starts: np.ndarray, year: int) -> dict[int, np.ndarray]:
    """For each forecast of a year that is valid in it, the indices of the forecasts that make up its climate.

    Their days are those of the calendar on which a forecast starts in any of the years.
    """
    years, valid = (dates.astype("datetime64[Y]").astype(int) + 1970 for dates in (starts, starts + ens10_layout.LEAD))
    in_climate = (years >= year - CLIMATE_YEARS) & (years <= year)
    day_of = np.array([str(start)[5:] for start in starts])
    place = np.searchsorted(np.unique(day_of[in_climate]), day_of)
    windows = {}
    for index in np.flatnonzero((years == year) & (valid == year)):
        near = in_climate & (np.abs(place - place[index]) <= WINDOW // 2)
        if len(np.unique(place[near])) >= MIN_WINDOW:
            windows[int(index)] = np.flatnonzero(near)
    return windows


def write_index(root: Path) -> None:
    """Writes `efi_<task>.nc` of all ten members for the forecasts of every year but the first."""
    for task in ens10_layout.TRUTH:
        members, _, times = ens10_layout.read_task(root, task)
        starts = times.astype("datetime64[D]") - ens10_layout.LEAD
        first, last = (int(str(starts[place])[:4]) for place in (0, -1))
        found = {}
        for year in range(first + 1, last + 1):
            for row, window in climate_windows(starts, year).items():
                climate = members[window].reshape(-1, *members.shape[2:])
                found[row] = extreme_forecast_index(climate, members[row])
        if found:
            ens10_layout.write_dated(
                root / f"efi_{task}.nc", starts[list(found)], "efi", np.stack(list(found.values())), "1", None
            )
