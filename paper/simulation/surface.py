"""Surface quantities that the model does not give itself."""

from __future__ import annotations

import numpy as np

from simulation.pressure_levels import GAS_CONSTANT, GRAVITY, STANDARD_LAPSE_RATE

_COLDEST_GROUND = 255.0


def sea_level_pressure(
    surface_pressure: np.ndarray, lowest: np.ndarray, sigma: float, height: np.ndarray
) -> np.ndarray:
    """Pressure at sea level in Pa, in an atmosphere that continues below the ground with 6.5 K/km.

    A ground colder than 255 K is treated as half-way to 255 K, as in the ECMWF's own reduction: the cold air of a
    plateau in winter does not extend down to the sea, and would have far too much weight.

    Args:
        surface_pressure: Surface pressure, `(..., H, W)` in Pa.
        lowest: Temperature of the lowest layer, `(..., H, W)` in K.
        sigma: Pressure of that layer over surface pressure.
        height: Height of the surface, `(H, W)` in m.
    """
    exponent = GAS_CONSTANT * STANDARD_LAPSE_RATE / GRAVITY
    ground = lowest * sigma**-exponent
    ground = np.where(ground < _COLDEST_GROUND, 0.5 * (ground + _COLDEST_GROUND), ground)
    return surface_pressure * (1.0 + STANDARD_LAPSE_RATE * height / ground) ** (1.0 / exponent)


def column_water_vapour(specific_humidity: np.ndarray, surface_pressure: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """Mass of water vapour over each square metre in kg.

    Args:
        specific_humidity: Specific humidity, `(M, K, H, W)` in kg kg-1, from the top down.
        surface_pressure: Surface pressure, `(M, H, W)` in Pa.
        sigma: Pressure over surface pressure at the middle of the `K` layers, which span 0 to 1.
    """
    bounds = [0.0]
    for middle in sigma:
        bounds.append(2.0 * float(middle) - bounds[-1])
    if not np.isclose(bounds[-1], 1.0, atol=1e-3):
        raise ValueError(f"the layers {sigma} do not reach the ground: the last ends at {bounds[-1]:.3f}, expected 1")
    shares = np.diff(bounds)[None, :, None, None]
    return (specific_humidity * shares).sum(axis=1) * surface_pressure / GRAVITY
