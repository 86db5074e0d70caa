"""From the model's Gaussian latitudes to other latitudes, linearly.

Poleward of the last Gaussian latitude the interpolation continues over the pole: the next value lies on the opposite
meridian, where both components of a wind have the opposite sign.
"""

from __future__ import annotations

import numpy as np


def to_latitudes(values: np.ndarray, latitude: np.ndarray, target: np.ndarray, *, is_wind: bool = False) -> np.ndarray:
    """Linear interpolation in latitude.

    Args:
        values: Fields, `(..., H, W)`, with an even number of longitudes once around the globe.
        latitude: Latitudes in degrees, from south to north, `(H,)`.
        target: Latitudes of the result in degrees, `(N,)`.
        is_wind: Whether `values` is a component of a horizontal vector.

    Returns:
        Fields `(..., N, W)` in the type of `values`.
    """
    longitudes = values.shape[-1]
    if longitudes % 2 or values.shape[-2] != len(latitude):
        raise ValueError(f"expected {len(latitude)} latitudes and an even number of longitudes, got {values.shape}")
    if not np.all(np.diff(latitude) > 0):
        raise ValueError(f"latitudes must run from south to north, got {latitude}")
    if np.abs(target).max() > 90:
        raise ValueError(f"latitudes must be in [-90, 90], got {target}")
    sign = -1 if is_wind else 1
    across = np.roll(values, longitudes // 2, axis=-1)
    extended = np.concatenate([sign * across[..., :1, :], values, sign * across[..., -1:, :]], axis=-2)
    extended_latitude = np.concatenate([[-180 - latitude[0]], latitude, [180 - latitude[-1]]])
    south = np.clip(np.searchsorted(extended_latitude, target) - 1, 0, len(latitude))
    weight = (target - extended_latitude[south]) / (extended_latitude[south + 1] - extended_latitude[south])
    weight = weight[:, None].astype(values.dtype)
    return (1 - weight) * extended[..., south, :] + weight * extended[..., south + 1, :]
