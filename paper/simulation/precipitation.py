"""Precipitation of every time step; the model's 6-hourly output alone would hold the rate of its last half hour."""

from __future__ import annotations

from typing import Any

import numpy as np


class PrecipitationRecorder:
    """An observer of jcm (see `jcm.observers.Observer`) that keeps the whole precipitation field at each time step."""

    name = "precipitation"

    def prepare(self, t0_days: float, dt_seconds: float, n_steps: int) -> dict[str, np.ndarray]:  # noqa: ARG002
        """One entry for each time step: the model's loop runs over it. Nothing is read from it."""
        return {"step": np.zeros(n_steps, dtype=np.float32)}

    def sample(self, diagnostics: dict[str, Any], xs: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """The rate in kg m-2 s-1 over the step, `(W, H)`."""
        return {"rate": diagnostics["surface_exchange"].precipitation}


class RainRecorder(PrecipitationRecorder):
    """Keeps convective precipitation apart as well."""

    def sample(self, diagnostics: dict[str, Any], xs: dict[str, Any]) -> dict[str, Any]:
        """Both rates in kg m-2 s-1 over the step, `(W, H)`; jcm has the convective one in grams."""
        return {**super().sample(diagnostics, xs), "convective": diagnostics["_convection"].precnv / 1000.0}


def totals(rate: np.ndarray, *, steps_per_total: int, step_seconds: float) -> np.ndarray:
    """Sums the rates of the steps up to each output time.

    Args:
        rate: Rate of precipitation, `(N, ...)` in kg m-2 s-1.
        steps_per_total: Steps in one total; divides `N`.
        step_seconds: Length of a step.

    Returns:
        Totals, `(N / steps_per_total, ...)` in m of water.
    """
    kilograms_per_cubic_metre = 1000.0
    folded = rate.reshape(-1, steps_per_total, *rate.shape[1:])
    return folded.sum(axis=1, dtype=np.float64) * (step_seconds / kilograms_per_cubic_metre)
