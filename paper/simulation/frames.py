"""What the model gives at its output times, on its own grid, as plain arrays."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np


@dataclass(frozen=True)
class ModelGrid:
    """The grid of a model run.

    Attributes:
        sigma: Pressure over surface pressure at the middle of the `K` layers, from the top down.
        latitude: Gaussian latitudes in degrees, from south to north.
        longitude: Degrees east from 0.
    """

    sigma: np.ndarray
    latitude: np.ndarray
    longitude: np.ndarray


@dataclass(frozen=True)
class Frames:
    """Fields at `T` output times; levels run from the top down, latitudes from south to north.

    Attributes:
        times: Times, `(T,)` datetime64.
        geopotential: Geopotential, `(T, K, H, W)` in m2 s-2.
        temperature: Temperature, `(T, K, H, W)` in K.
        eastward_wind: Eastward wind, `(T, K, H, W)` in m s-1.
        northward_wind: Northward wind, `(T, K, H, W)` in m s-1.
        specific_humidity: Specific humidity, `(T, K, H, W)` in kg kg-1.
        surface_pressure: Surface pressure, `(T, H, W)` in Pa.
        near_surface_temperature: Near-surface temperature, `(T, H, W)` in K.
        solar_flux: Downward solar flux at the top of the atmosphere, `(T, H, W)` in W m-2.
        precipitation: Precipitation since the output time before, `(T, H, W)` in m.
    """

    times: np.ndarray
    geopotential: np.ndarray
    temperature: np.ndarray
    eastward_wind: np.ndarray
    northward_wind: np.ndarray
    specific_humidity: np.ndarray
    surface_pressure: np.ndarray
    near_surface_temperature: np.ndarray
    solar_flux: np.ndarray
    precipitation: np.ndarray

    def check_finite(self) -> None:
        """Raises FloatingPointError with the field and the first time at which it is not finite."""
        for field in fields(self):
            if field.name == "times":
                continue
            values = getattr(self, field.name)
            bad = ~np.isfinite(values).reshape(len(self.times), -1).all(axis=1)
            if bad.any():
                raise FloatingPointError(f"the model broke down: {field.name} is not finite at {self.times[bad][0]}")
