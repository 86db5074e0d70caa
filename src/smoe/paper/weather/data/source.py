"""What every archive of weather data looks like once it is opened."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import numpy as np

from smoe.errors import DataError
from smoe.gridded.grid import Grid


class WeatherSource(ABC):
    """Where fields are read from: rows south to north, columns from 0 eastwards, WeatherBench's units and levels.

    Attributes:
        kind: The archive's layout: `weatherbench`, `cmip` or `weatherbench2`.
        grid: One of WeatherBench's.
        step_hours: Hours from one time to the next, 1 or 6.
        notices: What was put right while reading, each once, such as a latitude axis that was turned round.
    """

    kind: str
    grid: Grid
    step_hours: int
    notices: list[str]

    @property
    @abstractmethod
    def years(self) -> tuple[int, ...]:
        """Years of which there is at least one file, ascending."""

    @property
    @abstractmethod
    def channels(self) -> tuple[str, ...]:
        """Every channel it can give."""

    @property
    def constant_names(self) -> tuple[str, ...]:
        """Every constant it can give; the coordinates always."""
        return ("lat2d", "lon2d")

    @abstractmethod
    def times(self, year: int) -> np.ndarray:
        """Times of a year, datetime64[h], `(T,)`: regular, perhaps not the whole year.

        Raises:
            DataError: for a year that is not there, a gap, a time that is there twice, an axis that is not sorted.
        """

    @abstractmethod
    def read(self, channel: str, year: int) -> np.ndarray:
        """Fields of a channel at `times(year)`, float32, physical units, `(T, H, W)`.

        NaNs of the files stay. `tp` is the total of the six hours before each time; where the archive does not reach
        back six hours, and before the first hour of accumulated variables, it is NaN.

        Raises:
            DataError: for what is missing, truncated, damaged or in another unit.
        """

    @abstractmethod
    def read_constant(self, name: str) -> np.ndarray:
        """A field without time, float32, `(H, W)`.

        `lsm` is in [0, 1], `orography` in m, `lat2d` and `lon2d` in degrees; the last two need no file.
        """

    def check(self, channels: Iterable[str], years: Iterable[int]) -> None:
        """Looks for channels and years before hours are spent on reading them.

        Raises:
            DataError: as `read` does, for what can be known from the headers of the files.
        """
        for year in years:
            self.times(year)
        missing = [channel for channel in channels if channel not in self.channels]
        if missing:
            raise DataError(f"no channel {', '.join(missing)}; there are {', '.join(self.channels)}")

    def close(self) -> None:  # noqa: B027 - a source without files has nothing to close
        """Closes the files; reading opens them again."""

    def __enter__(self) -> WeatherSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
