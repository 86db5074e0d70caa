"""The fields of one stretch of time in WeatherBench's variables, units and grid."""

from __future__ import annotations

import numpy as np

from simulation.frames import Frames, ModelGrid
from simulation.latitudes import to_latitudes
from simulation.layout import LATITUDE, LEVELS, LONGITUDE
from simulation.pressure_levels import to_pressure_levels

SECONDS_PER_HOUR = 3600.0


def to_weatherbench(frames: Frames, grid: ModelGrid) -> dict[str, np.ndarray]:
    """WeatherBench's variables by short name: `(T, L, 32, 64)` with levels, `(T, 32, 64)` without, float32."""
    if not np.allclose(grid.longitude, LONGITUDE, atol=1e-4):
        raise ValueError(f"expected the longitudes {LONGITUDE[:3]}..., got {grid.longitude[:3]}...")
    values = to_pressure_levels(frames, grid.sigma, LEVELS)
    values["t2m"] = frames.near_surface_temperature
    values["tisr"] = frames.solar_flux * SECONDS_PER_HOUR
    values["tp"] = frames.precipitation
    return {
        name: to_latitudes(value, grid.latitude, LATITUDE, is_wind=name in ("u", "v")).astype(np.float32)
        for name, value in values.items()
    }
