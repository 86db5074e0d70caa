"""From the model's sigma levels to pressure levels, along the logarithm of pressure.

Between two model levels temperature, wind and humidity are linear in ln p, and geopotential is the integral of the
hydrostatic equation over that temperature: a parabola that meets the model's geopotential at both levels.

Below the lowest model level (also below the ground) temperature rises with the standard lapse rate, geopotential
follows hydrostatically, wind and humidity keep the lowest level's value. Above the highest model level temperature,
wind and humidity keep its value and geopotential follows hydrostatically.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simulation.frames import Frames

# The model's own constants (jcm.constants), so that its layers stay in hydrostatic balance.
GAS_CONSTANT = 287.04  # J kg-1 K-1
GRAVITY = 9.81  # m s-2
VAPOUR_FACTOR = 461.51 / 287.04 - 1.0
STANDARD_LAPSE_RATE = 0.0065  # K m-1


def to_pressure_levels(
    frames: Frames, sigma: np.ndarray, levels: tuple[int, ...], others: Mapping[str, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """The five level variables on pressure levels, and others that are linear in ln p as wind is.

    Args:
        frames: Fields on `K` sigma levels.
        sigma: Pressure over surface pressure of the levels, `(K,)`, from the top down.
        levels: `L` pressures in hPa.
        others: Further fields by name, `(T, K, H, W)`.

    Returns:
        Fields `z`, `t`, `u`, `v`, `q` and the others, each `(T, L, H, W)` in float32.
    """
    log_sigma = np.log(np.asarray(sigma, dtype=np.float64))
    if not np.all(np.diff(log_sigma) > 0):
        raise ValueError(f"sigma must rise from the top down, got {sigma}")
    virtual_temperature = frames.temperature * (1.0 + VAPOUR_FACTOR * frames.specific_humidity)
    log_surface_pressure = np.log(frames.surface_pressure.astype(np.float64))
    result: dict[str, list[np.ndarray]] = {name: [] for name in ("z", "t", "u", "v", "q", *(others or {}))}
    for level in levels:
        column = _Column(log_sigma, np.log(100.0 * level) - log_surface_pressure)
        result["z"].append(column.geopotential(frames.geopotential, virtual_temperature))
        result["t"].append(column.temperature(frames.temperature))
        result["u"].append(column.linear(frames.eastward_wind))
        result["v"].append(column.linear(frames.northward_wind))
        result["q"].append(column.linear(frames.specific_humidity))
        for name, values in (others or {}).items():
            result[name].append(column.linear(values))
    return {name: np.stack(values, axis=1).astype(np.float32) for name, values in result.items()}


class _Column:
    """Where one pressure level lies in each column of the model."""

    def __init__(self, log_sigma: np.ndarray, target: np.ndarray):
        """Finds the model levels around `target`, the log of pressure over surface pressure, `(T, H, W)`."""
        upper = np.clip(np.searchsorted(log_sigma, target) - 1, 0, len(log_sigma) - 2)
        self._upper = upper[:, None]
        self._thickness = log_sigma[upper + 1] - log_sigma[upper]
        self._inside = np.clip(target, log_sigma[0], log_sigma[-1])
        self._weight = (self._inside - log_sigma[upper]) / self._thickness
        # Distance beyond the outermost model level, in ln p: positive below the lowest, negative above the highest.
        self._beyond = target - self._inside

    def linear(self, values: np.ndarray) -> np.ndarray:
        """Linear between the levels, constant beyond the outermost."""
        above, below = self._around(values)
        return above + self._weight * (below - above)

    def temperature(self, values: np.ndarray) -> np.ndarray:
        """Linear between the levels; T = T_lowest (p / p_lowest)^(R lapse / g) below the lowest."""
        return self.linear(values) * np.exp(_EXPONENT * np.maximum(self._beyond, 0.0))

    def geopotential(self, values: np.ndarray, virtual_temperature: np.ndarray) -> np.ndarray:
        """The hydrostatic integral of the temperature of the same column."""
        above, below = self._around(virtual_temperature)
        curvature = self._weight * (1.0 - self._weight) * self._thickness * (below - above)
        between = self.linear(values) + 0.5 * GAS_CONSTANT * curvature
        outermost = self.linear(virtual_temperature)
        lapse = np.expm1(_EXPONENT * np.maximum(self._beyond, 0.0)) / _EXPONENT
        return between - GAS_CONSTANT * outermost * (lapse + np.minimum(self._beyond, 0.0))

    def _around(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The values at the model levels above and below, `(T, H, W)` each."""
        above = np.take_along_axis(values, self._upper, axis=1)[:, 0]
        below = np.take_along_axis(values, self._upper + 1, axis=1)[:, 0]
        return above.astype(np.float64), below.astype(np.float64)


_EXPONENT = GAS_CONSTANT * STANDARD_LAPSE_RATE / GRAVITY
