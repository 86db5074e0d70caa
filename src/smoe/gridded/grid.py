"""Points of a grid in latitude and longitude."""

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
