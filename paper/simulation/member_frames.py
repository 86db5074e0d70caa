"""What the members of an ensemble give at one time, on the model's grid, as plain arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulation.frames import Frames


@dataclass(frozen=True)
class MemberFrames(Frames):
    """Fields of `M` members; the first axis of `Frames` is that of the members, its times are all the same.

    Attributes:
        convective_precipitation: `(M, H, W)` in m; this and the precipitation fell since the start.
        divergence: `(M, K, H, W)` in s-1.
        vertical_velocity: `(M, K, H, W)`, Dp/Dt in Pa s-1.
        cloud_cover: `(M, H, W)` in [0, 1].
        sea_surface_temperature: `(M, H, W)` in K, the same for all members, with values on land too.
        skin_temperature: `(M, H, W)` in K.
        near_surface_eastward_wind: `(M, H, W)` in m s-1.
        near_surface_northward_wind: `(M, H, W)` in m s-1.
        initial_temperature: `(M, K, H, W)` in K, at the start.
    """

    convective_precipitation: np.ndarray
    divergence: np.ndarray
    vertical_velocity: np.ndarray
    cloud_cover: np.ndarray
    sea_surface_temperature: np.ndarray
    skin_temperature: np.ndarray
    near_surface_eastward_wind: np.ndarray
    near_surface_northward_wind: np.ndarray
    initial_temperature: np.ndarray
