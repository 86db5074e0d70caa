"""Global grids, and the three of WeatherBench."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Grid:
    """Points of a global grid.

    Attributes:
        latitude: Degrees north, from south to north in all weather stores; ENS-10 keeps its own north to south.
        longitude: Degrees east, from 0 eastwards.
    """

    latitude: tuple[float, ...]
    longitude: tuple[float, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, `(H, W)`."""
        return len(self.latitude), len(self.longitude)

    @property
    def degrees(self) -> float:
        """Distance of neighbours in latitude."""
        return abs(self.latitude[1] - self.latitude[0])

    @property
    def name(self) -> str:
        """What WeatherBench calls it, such as `5.625deg`."""
        return f"{self.degrees:g}deg"

    def lat2d(self) -> np.ndarray:
        """Latitude of each point, float32, `(H, W)`."""
        return np.repeat(np.asarray(self.latitude, np.float32)[:, None], self.shape[1], axis=1)

    def lon2d(self) -> np.ndarray:
        """Longitude of each point, float32, `(H, W)`."""
        return np.repeat(np.asarray(self.longitude, np.float32)[None, :], self.shape[0], axis=0)


def _regular_grid(degrees: float) -> Grid:
    rows, columns = round(180 / degrees), round(360 / degrees)
    # All three spacings are multiples of 2^-5, so that these values are exact.
    latitude = tuple(-90.0 + degrees / 2 + degrees * row for row in range(rows))
    return Grid(latitude, tuple(degrees * column for column in range(columns)))


GRIDS: dict[str, Grid] = {f"{degrees:g}deg": _regular_grid(degrees) for degrees in (5.625, 2.8125, 1.40625)}
