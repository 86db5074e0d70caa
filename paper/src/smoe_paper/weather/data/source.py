"""Weather data in any of their layouts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import numpy as np

from smoe.errors import DataError
from smoe_paper.atmosphere.grid import Grid

_BOUNDS = {"lsm": (-0.01, 1.01), "orography": (-1.0e3, 9.0e3), "slt": (-0.01, 10.0)}


def grid_constant(name: str, grid: Grid) -> np.ndarray | None:
    """Returns `lat2d` or `lon2d` of a grid, float32, `(H, W)`; None for another name."""
    return {"lat2d": grid.lat2d, "lon2d": grid.lon2d}[name]() if name in ("lat2d", "lon2d") else None


def check_constant(field: np.ndarray, name: str, where: str) -> np.ndarray:
    """Returns the field if it is finite and plausible."""
    if not np.isfinite(field).all():
        raise DataError(f"{where} has {int((~np.isfinite(field)).sum())} of {field.size} values missing")
    low, high = _BOUNDS.get(name, (-np.inf, np.inf))
    if field.min() < low or field.max() > high:
        raise DataError(
            f"{where} has values from {field.min():g} to {field.max():g}, which cannot be {name} "
            f"(between {low:g} and {high:g}): the unit is another or the file is damaged"
        )
    return field


class WeatherSource(ABC):
    """A source of fields: rows south to north, columns from 0 eastwards, WeatherBench's units and levels.

    Attributes:
        kind: Layout of the archive: `weatherbench`, `cmip` or `weatherbench2`.
        grid: One of WeatherBench's grids.
        step_hours: Hours from one time to the next, 1 or 6.
        notices: Corrections made while reading, each once, such as a reversed latitude axis.
    """

    kind: str
    grid: Grid
    step_hours: int
    notices: list[str]

    @property
    @abstractmethod
    def years(self) -> tuple[int, ...]:
        """Years with at least one file, ascending."""

    @property
    @abstractmethod
    def channels(self) -> tuple[str, ...]:
        """Every available channel."""

    @property
    def constant_names(self) -> tuple[str, ...]:
        """Every available constant; the coordinates are always available."""
        return ("lat2d", "lon2d")

    @abstractmethod
    def times(self, year: int) -> np.ndarray:
        """Returns the times of a year, datetime64[h], `(T,)`: regular, possibly incomplete.

        Raises:
            DataError: If the year is missing, or its times have a gap, repeat or are not sorted.
        """

    @abstractmethod
    def read(self, channel: str, year: int) -> np.ndarray:
        """Returns the fields of a channel at `times(year)`, float32, physical units, `(T, H, W)`.

        NaNs of the files stay. `tp` is the total of the six hours before each time. It is NaN where the archive does
        not reach back six hours, and before the first hour of accumulated variables.

        Raises:
            DataError: If something is missing, truncated, damaged or in another unit.
        """

    @abstractmethod
    def read_constant(self, name: str) -> np.ndarray:
        """Returns a field without time, float32, `(H, W)`.

        `lsm` is in [0, 1], `orography` in m, `lat2d` and `lon2d` in degrees; the last two need no file.
        """

    def check(self, channels: Iterable[str], years: Iterable[int]) -> None:
        """Checks that channels and years exist, before hours are spent on reading them.

        Raises:
            DataError: As for `read`, as far as the headers of the files show it.
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
