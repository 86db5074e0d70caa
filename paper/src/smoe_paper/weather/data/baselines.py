"""Forecasts without a model: persistence, climatology and weekly climatology, as in WeatherBench."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from smoe_paper.weather.data.store import WeatherStore
from smoe_paper.weather.data.truth import Progress, Truth

NUM_WEEKS = 52

BaselineName = Literal["persistence", "climatology", "weekly climatology"]
BASELINES: tuple[BaselineName, ...] = ("persistence", "climatology", "weekly climatology")


def week_of_year(times: np.ndarray) -> np.ndarray:
    """Returns the week, from 0 to 51, of each time.

    Week 0 begins on the first of January. Each week has seven days but the last one, which has the remaining eight or
    nine. (ISO weeks would put the first days of January into the last week of some years.)

    Args:
        times: Times, datetime64.
    """
    day_of_year = (times.astype("datetime64[D]") - times.astype("datetime64[Y]").astype("datetime64[D]")).astype(int)
    return np.minimum(day_of_year // 7, NUM_WEEKS - 1)


class Baselines:
    """Forecasts from the training years alone, in physical units.

    The constructor makes one pass over the channels of the training years; memory holds 53 fields for each channel.

    Args:
        store: Store with the training years.
        channels: Channels to forecast.
        train_years: First and last year of the means.
        progress: Called with the progress of the pass.

    Raises:
        DataError: If the store has none of the years or lacks a channel.
    """

    def __init__(
        self,
        store: WeatherStore,
        channels: Sequence[str],
        train_years: tuple[int, int],
        progress: Progress | None = None,
    ) -> None:
        self.truth = Truth(store, channels)
        self.train_years = train_years
        sums = np.zeros((NUM_WEEKS, len(self.truth.channels), *store.grid.shape))
        counts = np.zeros(NUM_WEEKS)
        times = self.truth.times_of(train_years)
        for piece, fields in self.truth.pieces(times, f"climatology of {train_years[0]}-{train_years[1]}", progress):
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

        Args:
            name: `persistence` is the state at the initial time, `climatology` the mean of the training years,
                `weekly climatology` their mean in the week of the valid time.
            init_times: Initial times, datetime64, `(B,)`.
            valid_times: Valid times, datetime64, `(B,)`.

        Returns:
            Forecasts, float64, `(B, C, H, W)`.
        """
        if name == "persistence":
            return self.truth.read(init_times)
        if name == "climatology":
            return np.broadcast_to(self.climatology, (len(init_times), *self.climatology.shape))
        return self.weekly_climatology[week_of_year(valid_times)]
