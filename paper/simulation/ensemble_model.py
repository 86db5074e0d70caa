"""The two models of the simulated ensemble: one plays the truth, one with wrong constants makes forecasts.

jcm and jax are imported where they are used: everything else here also runs without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from simulation.atmosphere import Atmosphere, AtmosphereSettings, south_to_north
from simulation.frames import Frames, ModelGrid
from simulation.member_frames import MemberFrames
from simulation.precipitation import RainRecorder

# Exchange with the surface is wrong by region (land, sea, mountains), convection and radiation by climate and season.
BIASED_CONSTANTS: Mapping[str, float] = {
    "+physics.terms.speedy_surface_flux.surface_params.cdl": 1.2e-3,
    "+physics.terms.speedy_surface_flux.surface_params.chl": 3.0e-3,
    "+physics.terms.speedy_surface_flux.surface_params.chs": 1.05e-3,
    "+physics.terms.speedy_surface_flux.surface_params.hdrag": 6000.0,
    "+physics.terms.speedy_surface_flux.surface_params.ftemp0": 0.95,
    "+physics.terms.speedy_convection.convection_params.trcnv": 12.0,
    "+physics.terms.speedy_downward_longwave.mod_radcon_params.epslw": 0.02,
}
"""What the forecasting model has wrong, in jcm's names: half the drag and 2.5 times the heat exchange over land, a
sixth more of it over sea, mountains that slow the wind less, near-surface air nearer to the layer above, convection
that is twice as slow, less longwave radiation of the boundary layer alone."""


class EnsembleModel:
    """The truth goes on from call to call; forecasts leave from its present state and change nothing of it."""

    def __init__(self, settings: AtmosphereSettings, forecast_overrides: Mapping[str, Any], lead_days: int):
        """Builds both models; the first step of each compiles it (a minute or two)."""
        self._truth = Atmosphere(settings)
        overrides = {**settings.overrides, **forecast_overrides}
        self._forecast = Atmosphere(replace(settings, overrides=overrides), RainRecorder())
        self._lead_days = lead_days
        self._run = None

    @property
    def grid(self) -> ModelGrid:
        """The grid of both models."""
        return self._truth.grid

    @property
    def orography(self) -> np.ndarray:
        """Height of the surface in m, `(H, W)`."""
        return self._truth.orography

    @property
    def land(self) -> np.ndarray:
        """Share of land, `(H, W)`."""
        return self._truth.land

    @property
    def time(self) -> np.datetime64:
        """The clock of the truth."""
        return self._truth.time

    def advance(self, days: int) -> Frames:
        """The truth goes on; its fields after every six hours."""
        return self._truth.advance(days)

    def save(self, path: Path) -> None:
        """Writes the state of the truth."""
        self._truth.save(path)

    def restore(self, path: Path) -> None:
        """Goes back to a saved state of the truth."""
        self._truth.restore(path)

    def state(self) -> dict[str, np.ndarray]:
        """What is perturbed: the spectral coefficients of the truth's present state, by name."""
        dynamics = self._truth.run_state.dynamics
        parts = {name: np.asarray(getattr(dynamics, name)) for name in _PERTURBED}
        return parts | {f"tracers.{name}": np.asarray(values) for name, values in dynamics.tracers.items()}

    def forecast(self, perturbations: Mapping[str, np.ndarray]) -> MemberFrames:
        """Runs all members at once, from the truth's present state plus perturbations with the names of `state`."""
        import jax  # pyright: ignore[reportMissingImports]

        if self._run is None:
            self._run = jax.jit(jax.vmap(self._run_member, in_axes=(0, None)))
        start = self._truth.run_state
        result = jax.device_get(self._run(dict(perturbations), start))
        valid = self.time + np.timedelta64(24 * self._lead_days, "h")
        members = len(result["temperature"])
        fields = {name: south_to_north(values) for name, values in result.items()}
        frames = MemberFrames(times=np.full(members, valid), **fields)
        frames.check_finite()
        return frames

    def _run_member(self, perturbation: Mapping[str, Any], start: Any) -> dict[str, Any]:
        from jcm import constants  # pyright: ignore[reportMissingImports]
        from jcm.date import DateData  # pyright: ignore[reportMissingImports]

        model = self._forecast.model
        dynamics = start.dynamics
        changed = {name: getattr(dynamics, name) + perturbation[name] for name in _PERTURBED}
        tracers = {name: values + perturbation[f"tracers.{name}"] for name, values in dynamics.tracers.items()}
        dynamics = dynamics.replace(**changed, tracers=tracers)
        days = float(self._lead_days)
        tables = tuple(
            observer.prepare(0.0, float(model.dt_si.m), round(days * 86400 / float(model.dt_si.m)))
            for observer in model.observers
        )
        end, predictions = model.run_from_state_with_carry(
            dynamics, self._forecast.forcing, save_interval=days, total_time=days, initial_physics_state=start.physics,
            initial_time=start.time, initial_step=start.step, observer_xs=tables,
        )  # fmt: skip
        state = _last(predictions.dynamics)
        surface, shortwave = (_last(predictions.physics[name]) for name in ("_surface_flux", "_shortwave_rad"))
        boundary = self._forecast.forcing.select(DateData(end.time, end.step, int(model.dt_si.m)))
        rain = predictions.observations[0]
        metres_per_step = float(model.dt_si.m) / 1000.0
        return {
            "geopotential": state.geopotential,
            "temperature": state.temperature,
            "eastward_wind": state.u_wind,
            "northward_wind": state.v_wind,
            "specific_humidity": state.specific_humidity,
            "surface_pressure": state.normalized_surface_pressure * constants.p0,
            "near_surface_temperature": surface.t0,
            "solar_flux": shortwave.fsol,
            "precipitation": rain["rate"].sum(axis=0) * metres_per_step,
            "convective_precipitation": rain["convective"].sum(axis=0) * metres_per_step,
            "divergence": model.dycore.coords.horizontal.to_nodal(end.dynamics.divergence),
            # The public way computes it at every time step.
            "vertical_velocity": model.dycore._compute_omega(end.dynamics),
            "cloud_cover": shortwave.cloudc,
            "sea_surface_temperature": boundary.sea_surface_temperature,
            "skin_temperature": surface.tskin,
            "near_surface_eastward_wind": surface.u0,
            "near_surface_northward_wind": surface.v0,
            "initial_temperature": model.dycore.to_physics_state(dynamics).temperature,
        }


_PERTURBED = ("vorticity", "divergence", "temperature_variation", "log_surface_pressure")


def _last(tree: Any) -> Any:
    import jax  # pyright: ignore[reportMissingImports]

    return jax.tree_util.tree_map(lambda values: values[-1], tree)
