"""Scores of forecasts in physical units: of baselines, of files, and those beyond a run's own metrics."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from smoe.training.metrics import Metric, MetricSums
from smoe_paper.metrics import AnomalyCorrelation, LatitudeWeightedMAE, LatitudeWeightedRMSE, MeanOfRootsRMSE
from smoe_paper.weather.data.baselines import BASELINES, BaselineName, Baselines
from smoe_paper.weather.data.store import WeatherStore
from smoe_paper.weather.data.truth import Progress

Scores = dict[str, float]

_FORECASTS_PER_PIECE = 64


def metrics_of(store: WeatherStore, channels: Sequence[str], climatology: np.ndarray) -> list[Metric]:
    """Returns all scores of normalised forecasts.

    Args:
        store: Store that gives the normalisation.
        channels: Channels of the forecasts.
        climatology: Climatology of the ACC, in physical units, `(C, H, W)`.
    """
    indices = store.channel_indices(channels)
    scales, offsets = store.std[indices], store.mean[indices]
    # The network forecasts the logarithm of precipitation.
    inverses = {name: partial(store.to_physical, name) for name in channels if name == "tp"}
    latitude = store.grid.latitude
    return [
        *(
            kind(channels, latitude, scales, inverses=inverses)
            for kind in (LatitudeWeightedRMSE, MeanOfRootsRMSE, LatitudeWeightedMAE)
        ),
        AnomalyCorrelation(channels, latitude, scales, climatology, offsets=offsets, inverses=inverses),
    ]


def physical_metrics(latitude: Sequence[float], channels: Sequence[str], climatology: np.ndarray) -> list[Metric]:
    """Returns all scores of forecasts in physical units."""
    ones, zeros = [1.0] * len(channels), [0.0] * len(channels)
    return [
        *(kind(channels, latitude, ones) for kind in (LatitudeWeightedRMSE, MeanOfRootsRMSE, LatitudeWeightedMAE)),
        AnomalyCorrelation(channels, latitude, ones, climatology, offsets=zeros),
    ]


def score_baselines(
    baselines: Baselines,
    init_times: np.ndarray,
    lead_hours: int,
    climatology: np.ndarray,
    names: Sequence[BaselineName] = BASELINES,
    progress: Progress | None = None,
) -> dict[str, Scores]:
    """Returns the scores of the baselines on given forecasts.

    Args:
        baselines: Baselines from the training years.
        init_times: Initial times of the forecasts, datetime64.
        lead_hours: Lead of the forecasts.
        climatology: Climatology of the ACC, in physical units, `(C, H, W)`.
        names: Names of the baselines to score.
        progress: Called with the progress.

    Raises:
        DataError: If the store lacks a time.
    """
    truth = baselines.truth
    metrics = physical_metrics(truth.store.grid.latitude, truth.channels, climatology)
    sums: dict[BaselineName, MetricSums] = {name: MetricSums(metrics) for name in names}
    for first in range(0, len(init_times), _FORECASTS_PER_PIECE):
        inits = init_times[first : first + _FORECASTS_PER_PIECE]
        valid = inits + np.timedelta64(lead_hours, "h")
        target = torch.from_numpy(truth.read(valid))
        for name, total in sums.items():
            total.add(torch.from_numpy(np.ascontiguousarray(baselines.forecast(name, inits, valid))), target)
        if progress is not None:
            progress("scores of the baselines", min(first + _FORECASTS_PER_PIECE, len(init_times)), len(init_times))
    return {name: total.values() for name, total in sums.items()}
