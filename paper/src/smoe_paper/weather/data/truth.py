"""True fields of a store at given times, in physical units."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from smoe.errors import DataError
from smoe_paper.weather.data.store import WeatherStore

# Called with a description, the number of steps done, and the number of all steps.
Progress = Callable[[str, int, int], None]

_TIMES_PER_PIECE = 128


class Truth:
    """Some channels of a store.

    Args:
        store: Store of the fields.
        channels: Names of the channels, in the order of the result.

    Raises:
        DataError: If the store lacks a channel.
    """

    def __init__(self, store: WeatherStore, channels: Sequence[str]) -> None:
        self.store = store
        self.channels = tuple(channels)
        self._indices = store.channel_indices(self.channels)

    def has(self, times: np.ndarray) -> np.ndarray:
        """Returns a mask of the times, datetime64, that are in the store."""
        return np.isin(times.astype("datetime64[h]"), self.store.times)

    def read(self, times: np.ndarray) -> np.ndarray:
        """Returns the fields at some times, float64, `(len(times), C, H, W)`.

        Raises:
            DataError: If a time is not in the store.
        """
        missing = times[~self.has(times)]
        if len(missing):
            raise DataError(f"{missing[0]} is not among the times of the store {self.store.path}")
        return self._read_rows(np.searchsorted(self.store.times, times.astype("datetime64[h]")))

    def times_of(self, years: tuple[int, int]) -> np.ndarray:
        """Returns the times of the store in the years from the first to the last.

        Raises:
            DataError: If there are none.
        """
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

    def pieces(
        self, times: np.ndarray, text: str, progress: Progress | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields times and their fields in pieces, so that memory does not grow with their number."""
        for first in range(0, len(times), _TIMES_PER_PIECE):
            piece = times[first : first + _TIMES_PER_PIECE]
            yield piece, self.read(piece)
            if progress is not None:
                progress(text, min(first + _TIMES_PER_PIECE, len(times)), len(times))

    def mean(self, years: tuple[int, int], progress: Progress | None = None) -> np.ndarray:
        """Returns the mean over all times of the years, `(C, H, W)`, which WeatherBench's ACC uses."""
        times = self.times_of(years)
        total = np.zeros((len(self.channels), *self.store.grid.shape))
        for _, fields in self.pieces(times, f"mean of {years[0]}-{years[1]}", progress):
            total += fields.sum(0)
        return total / len(times)

    def _read_rows(self, rows: np.ndarray) -> np.ndarray:
        fields = np.empty((len(rows), len(self.channels), *self.store.grid.shape))
        for number, row in enumerate(rows):
            fields[number] = self.store.fields[row, self._indices]
        for number, name in enumerate(self.channels):
            fields[:, number] = self.store.to_physical(name, fields[:, number])
        return fields
