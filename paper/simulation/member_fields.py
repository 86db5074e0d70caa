"""The members' fields, and the truth's, in ENS-10's variables, units and orientation."""

from __future__ import annotations

import numpy as np

from simulation.ens10_layout import LATITUDE, LEVELS
from simulation.frames import Frames, ModelGrid
from simulation.latitudes import to_latitudes
from simulation.member_frames import MemberFrames
from simulation.pressure_levels import to_pressure_levels
from simulation.surface import column_water_vapour, sea_level_pressure

_WINDS = ("u", "v", "u10", "v10")


def to_ens10(
    frames: MemberFrames, grid: ModelGrid, orography: np.ndarray, land: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """ENS-10's variables by cfgrib's names, rows from north to south.

    Args:
        frames: Frames of the members.
        grid: Grid of the model.
        orography: Height of the surface in m, `(H, W)`.
        land: Share of land, `(H, W)`; where it is most of the grid box there is no sea surface.

    Returns:
        Fields on pressure levels `(M, 2, 32, 64)`, and at the surface `(M, 32, 64)`.
    """
    others = {"w": frames.vertical_velocity, "d": frames.divergence}
    levels = to_pressure_levels(frames, grid.sigma, LEVELS, others)
    vapour = column_water_vapour(frames.specific_humidity, frames.surface_pressure, grid.sigma)
    surface = {
        "sst": frames.sea_surface_temperature,
        # The model's clouds hold no water: all of it is vapour.
        "tcw": vapour,
        "tcwv": vapour,
        "cp": frames.convective_precipitation,
        "msl": sea_level_pressure(frames.surface_pressure, frames.temperature[:, -1], float(grid.sigma[-1]), orography),
        "tcc": frames.cloud_cover,
        "u10": frames.near_surface_eastward_wind,
        "v10": frames.near_surface_northward_wind,
        "t2m": frames.near_surface_temperature,
        "tp": frames.precipitation,
        "skt": frames.skin_temperature,
    }
    surface = {name: _turn(name, values, grid) for name, values in surface.items()}
    is_land = _turn("land", land, grid) > 0.5
    surface["sst"] = np.where(is_land, np.float32(np.nan), surface["sst"])
    return {name: _turn(name, values, grid) for name, values in levels.items()}, surface


def to_truth(frames: Frames, grid: ModelGrid) -> dict[str, np.ndarray]:
    """What forecasts are compared with, at the last time of the frames: `z500`, `t850`, `t2m`, each `(32, 64)`."""
    levels = to_pressure_levels(frames, grid.sigma, LEVELS)
    values = {
        "z500": levels["z"][-1, LEVELS.index(500)],
        "t850": levels["t"][-1, LEVELS.index(850)],
        "t2m": frames.near_surface_temperature[-1],
    }
    return {name: _turn(name, field, grid) for name, field in values.items()}


def _turn(name: str, values: np.ndarray, grid: ModelGrid) -> np.ndarray:
    return to_latitudes(values, grid.latitude, LATITUDE, is_wind=name in _WINDS).astype(np.float32)
