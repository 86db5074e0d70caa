"""Truth of forecasts, and forecasts without training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
from rich.console import Console
from rich.progress import track

from smoe.errors import DataError
from smoe_paper.weather.store import WeatherStore

Scores = Mapping[str, float]
_TIMES_PER_PIECE = 128


def show_progress(steps: Sequence[int], text: str) -> Iterable[int]:
    """Yields steps, with a bar on a terminal."""
    console = Console(stderr=True)
    return track(steps, text, console=console, transient=True, disable=not console.is_terminal)


class Truth:
    """Some channels of a store, in physical units."""

    def __init__(self, store: WeatherStore, channels: Sequence[str]) -> None:
        self.store = store
        self.channels = tuple(channels)
        self._indices = store.channel_indices(self.channels)

    def has(self, times: np.ndarray) -> np.ndarray:
        """Returns a mask of the times, datetime64, that are in the store."""
        return np.isin(times.astype("datetime64[h]"), self.store.times)

    def read(self, times: np.ndarray) -> np.ndarray:
        """Returns the fields at some times, float64, `(len(times), C, H, W)`."""
        missing = times[~self.has(times)]
        if len(missing):
            raise DataError(f"{missing[0]} is not among the times of the store {self.store.path}")
        fields = np.empty((len(times), len(self.channels), *self.store.grid.shape))
        for number, row in enumerate(np.searchsorted(self.store.times, times.astype("datetime64[h]"))):
            fields[number] = self.store.fields[row][self._indices]
        for number, name in enumerate(self.channels):
            fields[:, number] = self.store.to_physical(name, fields[:, number])
        return fields

    def times_of(self, years: tuple[int, int]) -> np.ndarray:
        """Returns the times of the store in the years from the first to the last."""
        times = self.store.times
        found = times[
            (times >= np.datetime64(f"{years[0]:04d}", "h")) & (times < np.datetime64(f"{years[1] + 1:04d}", "h"))
        ]
        if not len(found):
            present = self.store.years()
            raise DataError(
                f"the store {self.store.path} has no times in the years {years[0]} to {years[1]}; "
                f"it has {present[0]} to {present[-1]}"
            )
        return found

    def pieces(self, times: np.ndarray, text: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields times and their fields in pieces, so that memory does not grow with their number."""
        for first in show_progress(range(0, len(times), _TIMES_PER_PIECE), text):
            piece = times[first : first + _TIMES_PER_PIECE]
            yield piece, self.read(piece)

    def mean(self, years: tuple[int, int]) -> np.ndarray:
        """Returns the mean over all times of the years, `(C, H, W)`, which WeatherBench's ACC uses."""
        times = self.times_of(years)
        total = np.zeros((len(self.channels), *self.store.grid.shape))
        for _, fields in self.pieces(times, f"mean of {years[0]}-{years[1]}"):
            total += fields.sum(0)
        return total / len(times)


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

    def __init__(
        self,
        store: WeatherStore,
        channels: Sequence[str],
        train_years: tuple[int, int],
    ) -> None:
        self.truth = Truth(store, channels)
        self.train_years = train_years
        sums = np.zeros((NUM_WEEKS, len(self.truth.channels), *store.grid.shape))
        counts = np.zeros(NUM_WEEKS)
        times = self.truth.times_of(train_years)
        for piece, fields in self.truth.pieces(times, f"climatology of {train_years[0]}-{train_years[1]}"):
            weeks = week_of_year(piece)
            for week in np.unique(weeks):
                sums[week] += fields[weeks == week].sum(0)
                counts[week] += np.count_nonzero(weeks == week)
        self.climatology = sums.sum(0) / counts.sum()
        # A week without a training time has the mean NaN, and so has the score of a forecast for it.
        self.weekly_climatology = np.full_like(sums, np.nan)
        known = counts > 0
        self.weekly_climatology[known] = sums[known] / counts[known, None, None, None]

    def forecast(self, name: BaselineName, init_times: np.ndarray, valid_times: np.ndarray) -> np.ndarray:
        """Returns the forecasts made at some times for others.

        Returns:
            Forecasts, float64, `(B, C, H, W)`.
        """
        if name == "persistence":
            return self.truth.read(init_times)
        if name == "climatology":
            return np.broadcast_to(self.climatology, (len(init_times), *self.climatology.shape))
        return self.weekly_climatology[week_of_year(valid_times)]
