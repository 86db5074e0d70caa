"""Truth of forecasts in physical units, forecasts without training, and files of forecasts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from rich.console import Console
from rich.progress import track

from smoe.errors import DataError
from smoe_paper.atmosphere.fields import years_of
from smoe_paper.weather.store import WeatherStore

_TIMES_PER_PIECE = 128


def pieces_of(times: np.ndarray, text: str) -> Iterator[np.ndarray]:
    """Yields times in pieces, with a bar on a terminal."""
    console = Console(stderr=True)
    starts = range(0, len(times), _TIMES_PER_PIECE)
    for first in track(starts, text, console=console, transient=True, disable=not console.is_terminal):
        yield times[first : first + _TIMES_PER_PIECE]


class Truth:
    """Some channels of a store, in physical units."""

    def __init__(self, store: WeatherStore, channels: Sequence[str]) -> None:
        self.store, self.channels = store, tuple(channels)
        self._indices = store.channel_indices(self.channels)

    def read(self, times: np.ndarray) -> np.ndarray:
        """Returns the fields at some times, float64, `(len(times), C, H, W)`."""
        missing = times[~np.isin(times, self.store.times)]
        if len(missing):
            raise DataError(f"{missing[0]} is not among the times of the store {self.store.path}")
        rows = np.searchsorted(self.store.times, times)
        fields = np.stack([self.store.fields[row][self._indices] for row in rows]).astype(np.float64)
        for number, name in enumerate(self.channels):
            fields[:, number] = self.store.to_physical(name, fields[:, number])
        return fields

    def times_of(self, years: tuple[int, int]) -> np.ndarray:
        of_year = years_of(self.store.times)
        found = self.store.times[(of_year >= years[0]) & (of_year <= years[1])]
        if not len(found):
            present = self.store.years()
            raise DataError(
                f"the store {self.store.path} has no times in the years {years[0]} to {years[1]}; "
                f"it has {present[0]} to {present[-1]}"
            )
        return found


NUM_WEEKS = 52

BaselineName = Literal["persistence", "climatology", "weekly climatology"]
BASELINES: tuple[BaselineName, ...] = ("persistence", "climatology", "weekly climatology")


def week_of_year(times: np.ndarray) -> np.ndarray:
    """Returns the week, from 0 to 51, of each time.

    Week 0 begins on the first of January. Each week has seven days but the last one, which has the remaining eight or
    nine. (ISO weeks would put the first days of January into the last week of some years.)
    """
    day_of_year = (times.astype("datetime64[D]") - times.astype("datetime64[Y]").astype("datetime64[D]")).astype(int)
    return np.minimum(day_of_year // 7, NUM_WEEKS - 1)


class Baselines:
    """Forecasts from the training years alone, in physical units; memory holds 53 fields for each channel."""

    def __init__(self, store: WeatherStore, channels: Sequence[str], train_years: tuple[int, int]) -> None:
        self.truth = Truth(store, channels)
        sums = np.zeros((NUM_WEEKS, len(self.truth.channels), *store.grid.shape))
        counts = np.zeros(NUM_WEEKS)
        times = self.truth.times_of(train_years)
        for piece in pieces_of(times, f"climatology of {train_years[0]}-{train_years[1]}"):
            weeks, fields = week_of_year(piece), self.truth.read(piece)
            np.add.at(sums, weeks, fields)
            counts += np.bincount(weeks, minlength=NUM_WEEKS)
        self.climatology = sums.sum(0) / counts.sum()
        # A week without a training time has the mean NaN, and so has the score of a forecast for it.
        with np.errstate(invalid="ignore"):
            self.weekly_climatology = sums / counts[:, None, None, None]

    def forecast(self, name: BaselineName, init_times: np.ndarray, valid_times: np.ndarray) -> np.ndarray:
        """Returns the forecasts made at some times for others, float64, `(B, C, H, W)`."""
        if name == "persistence":
            return self.truth.read(init_times)
        if name == "climatology":
            return np.repeat(self.climatology[None], len(init_times), axis=0)
        return self.weekly_climatology[week_of_year(valid_times)]
