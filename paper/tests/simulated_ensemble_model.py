"""Made-up truth and forecasts for the tests of the simulated ensemble: warmer forecasts, members that differ."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from simulated_model import GAUSSIAN_LATITUDE, SIGMA, Killed, SimulatedModel
from simulation.frames import Frames, ModelGrid
from simulation.member_frames import MemberFrames

BIAS = 0.5
ROWS = GAUSSIAN_LATITUDE[:, None] / 90.0


class SimulatedEnsembleModel:
    """The truth is a pattern times one chaotic number; forecasts are it two days later, with bias and noise."""

    grid = ModelGrid(SIGMA, GAUSSIAN_LATITUDE, 5.625 * np.arange(64))
    orography = np.zeros((32, 64), np.float32)
    land = np.broadcast_to((np.arange(64) < 20).astype(np.float32), (32, 64))

    def __init__(self, start: str):
        self._truth = SimulatedModel(start)
        self.forecasts_until_killed: int | None = None
        self.num_forecasts = 0

    @property
    def time(self) -> np.datetime64:
        return self._truth.time

    def advance(self, days: int) -> Frames:
        return _with_rows(self._truth.advance(days))

    def state(self) -> dict[str, np.ndarray]:
        return {"vorticity": np.full((2, 3), self._truth.number, np.float32)}

    def forecast(self, perturbations: Mapping[str, np.ndarray]) -> MemberFrames:
        if self.forecasts_until_killed is not None:
            self.forecasts_until_killed -= 1
            if self.forecasts_until_killed < 0:
                raise Killed
        self.num_forecasts += 1
        future = SimulatedModel(str(self.time))
        future.number = self._truth.number
        last = _with_rows(future.advance(2))
        own = perturbations["vorticity"][:, 0, 0]
        deep, flat = own[:, None, None, None], own[:, None, None]

        def spread(values: np.ndarray, shift: float = 0.0) -> np.ndarray:
            member = deep if values.ndim == 4 else flat
            return (values[-1:] + shift + member * (1.0 + ROWS)).astype(np.float32)

        temperature = spread(last.temperature, BIAS)
        surface = spread(last.near_surface_temperature, BIAS)
        one = np.ones_like(surface)
        return MemberFrames(
            times=np.full(len(own), self.time + np.timedelta64(48, "h")),
            geopotential=spread(last.geopotential),
            temperature=temperature,
            eastward_wind=spread(last.eastward_wind),
            northward_wind=spread(last.northward_wind),
            specific_humidity=1e-5 * temperature,
            surface_pressure=0.99e5 + 3.0 * surface,
            near_surface_temperature=surface,
            solar_flux=one,
            precipitation=1e-5 * surface,
            convective_precipitation=5e-6 * surface,
            divergence=1e-6 * temperature,
            vertical_velocity=1e-3 * temperature,
            cloud_cover=surface / 400.0,
            sea_surface_temperature=290.0 * one + ROWS,
            skin_temperature=surface + 1.0,
            near_surface_eastward_wind=surface / 100,
            near_surface_northward_wind=surface / 200,
            initial_temperature=250.0 + 0.5 * deep * np.ones_like(temperature),
        )

    def save(self, path: Path) -> None:
        self._truth.save(path)

    def restore(self, path: Path) -> None:
        self._truth.restore(path)


def _with_rows(frames: Frames) -> Frames:
    """Fields that differ from row to row, as those of weather do; geopotential of a plausible size."""
    values = {
        name: 250.0 + 20.0 * (getattr(frames, name) - mean) * (1.0 + 0.5 * ROWS) + 10.0 * np.abs(ROWS)
        for name, mean in (("temperature", 250.0), ("near_surface_temperature", 280.0))
    }
    values |= {name: getattr(frames, name) + ROWS for name in ("eastward_wind", "northward_wind")}
    geopotential = 1000.0 * frames.geopotential * (1.0 + ROWS) - 7.8e4 * np.log(SIGMA)[:, None, None]
    return Frames(
        frames.times, geopotential, values["temperature"], values["eastward_wind"], values["northward_wind"],
        frames.specific_humidity, frames.surface_pressure, values["near_surface_temperature"], frames.solar_flux,
        frames.precipitation,
    )  # fmt: skip
