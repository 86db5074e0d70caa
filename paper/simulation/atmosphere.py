"""The model: jcm's SPEEDY physics on its spectral core, over the land, sea and orography inside jcm's wheel.

jcm and jax are imported where they are used: everything else here also runs without them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from simulation.frames import Frames, ModelGrid
from simulation.precipitation import PrecipitationRecorder, totals

OUTPUT_HOURS = 6


@dataclass(frozen=True)
class AtmosphereSettings:
    """What a run is made of.

    Attributes:
        start: First day, at which the model is isothermal and at rest.
        truncation: Spectral truncation; T21 has WeatherBench's 64 longitudes and 32 latitudes.
        time_step_minutes: Time step of dynamics and physics.
        overrides: Further settings of jcm by their dotted names, for a model with other constants.
    """

    start: str = "2000-07-05"
    truncation: int = 21
    time_step_minutes: int = 30
    overrides: Mapping[str, Any] = field(default_factory=dict)


class Atmosphere:
    """A running model: its state goes on from call to call, and can be saved and restored."""

    def __init__(self, settings: AtmosphereSettings, recorder: PrecipitationRecorder | None = None):
        """Builds the model at its start; the first `advance` compiles it (a minute or two)."""
        # The preset's own files lie on a hub; the wheel contains the same files.
        os.environ["HF_HUB_OFFLINE"] = "1"
        import jcm.configurations  # pyright: ignore[reportMissingImports]

        boundary = Path(jcm.configurations.__file__).parent / "data" / "bc" / "t63"
        loaded = jcm.configurations.load(
            "speedy-t31",
            **{
                "terrain.file": str(boundary / "terrain.nc"),
                "forcing.file": str(boundary / "forcing.nc"),
                # No ozone file fits sigma levels; SPEEDY's radiation has its own ozone.
                "forcing.ozone_file": "analytic",
                "grid.spectral_truncation": settings.truncation,
                "run.time_step": settings.time_step_minutes,
                "run.start_time": settings.start,
                **settings.overrides,
            },
        )
        self.model = loaded.model
        self.forcing = loaded.forcing
        self._step_seconds = 60 * settings.time_step_minutes
        self.model.observers = (recorder or PrecipitationRecorder(),)
        self.model.bootstrap_state()
        horizontal = self.model.coords.horizontal
        self.grid = ModelGrid(
            sigma=np.asarray(self.model.coords.vertical.centers, dtype=np.float64),
            latitude=np.degrees(np.asarray(horizontal.latitudes, dtype=np.float64)),
            longitude=np.degrees(np.asarray(horizontal.longitudes, dtype=np.float64)),
        )
        # The model has fields (W, H).
        self.orography = np.asarray(self.model.terrain.orog, dtype=np.float32).T
        self.land = np.asarray(self.model.terrain.fmask, dtype=np.float32).T

    @property
    def run_state(self) -> Any:
        """State, physics memory and clock, as jcm has them."""
        return self.model.run_state

    @property
    def time(self) -> np.datetime64:
        """The model's clock."""
        return np.datetime64(self.run_state.time.to_datetime64(), "h")

    def advance(self, days: int) -> Frames:
        """Runs on for some days and gives the fields after every six hours. Another number of days compiles anew."""
        import jax  # pyright: ignore[reportMissingImports]
        from jcm import constants  # pyright: ignore[reportMissingImports]

        start = self.time
        predictions = self.model.resume(forcing=self.forcing, total_time=float(days), save_interval=OUTPUT_HOURS / 24.0)
        state, physics, observed = jax.device_get(
            (predictions.dynamics, predictions.physics, predictions.observations[0]["rate"])
        )
        rain = totals(
            observed, steps_per_total=OUTPUT_HOURS * 3600 // self._step_seconds, step_seconds=self._step_seconds
        )
        frames = Frames(
            times=start + np.arange(1, 24 // OUTPUT_HOURS * days + 1) * np.timedelta64(OUTPUT_HOURS, "h"),
            geopotential=south_to_north(state.geopotential),
            temperature=south_to_north(state.temperature),
            eastward_wind=south_to_north(state.u_wind),
            northward_wind=south_to_north(state.v_wind),
            specific_humidity=south_to_north(state.specific_humidity),
            surface_pressure=south_to_north(state.normalized_surface_pressure) * np.float32(constants.p0),
            near_surface_temperature=south_to_north(physics["_surface_flux"].t0),
            solar_flux=south_to_north(physics["_shortwave_rad"].fsol),
            precipitation=south_to_north(rain),
        )
        frames.check_finite()
        return frames

    def save(self, path: Path) -> None:
        """Writes state, physics memory and clock; the file is whole or the old one stays."""
        from jcm.checkpoint import save_checkpoint  # pyright: ignore[reportMissingImports]

        save_checkpoint(self.model, path)

    def restore(self, path: Path) -> None:
        """Goes back to a saved state of a model with the same settings."""
        from jcm.checkpoint import load_checkpoint  # pyright: ignore[reportMissingImports]

        try:
            load_checkpoint(self.model, path)
        except ValueError as error:
            raise ValueError(f"{error} To begin again, delete {path.parent} and the years after it") from error


def south_to_north(values: np.ndarray) -> np.ndarray:
    """From the model's (..., lon, lat) to (..., lat, lon); its latitudes run from south to north already."""
    return np.ascontiguousarray(np.swapaxes(np.asarray(values), -1, -2))
