"""Scores of forecasts: of runs, and of files of other origin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from smoe.errors import DataError
from smoe.training.task import Metric, MetricSums
from smoe_paper.experiments.task import OpenRun
from smoe_paper.metrics import AnomalyCorrelation, LatitudeWeightedMAE, LatitudeWeightedRMSE, MeanOfRootsRMSE
from smoe_paper.weather.forecasts import ForecastFile, write_forecasts
from smoe_paper.weather.recipes import WeatherRecipe
from smoe_paper.weather.samples import WeatherSamples
from smoe_paper.weather.store import WeatherStore
from smoe_paper.weather.truth import BASELINES, BaselineName, Baselines, Progress, Truth

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


@dataclass(frozen=True)
class RunScores:
    """Scores of a run on a split.

    Attributes:
        lead_hours: Lead of the forecasts.
        years: First and last year of the split.
        num_forecasts: Number of scored forecasts.
        scores: Scores of the run.
        baselines: Scores of persistence and the climatologies on the same forecasts.
    """

    lead_hours: int
    years: tuple[int, int]
    num_forecasts: int
    scores: Scores
    baselines: dict[str, Scores]


def evaluate_run(
    run: OpenRun, split: str, forecasts: Path | None = None, progress: Progress | None = None
) -> RunScores:
    """Scores a run and the baselines.

    Args:
        run: Run, opened with the split.
        split: Split to score, such as `test`.
        forecasts: File to write the forecasts to, `.nc` or `.zarr`.
        progress: Called with the progress.

    Raises:
        DataError: If the split has samples of several leads, like the training data of a continuous lead.
    """
    assert isinstance(run.recipe, WeatherRecipe)
    samples, lead_hours = samples_of(run, split)
    init_times = np.array([samples.init_time(index) for index in range(len(samples))])
    truth = Truth(samples.store, samples.targets)
    climatology = truth.mean(samples.years, progress)
    metrics: list[Metric] = metrics_of(samples.store, samples.targets, climatology)
    names = {name for metric in metrics for name in metric.names}
    others = [metric for metric in run.task.metrics if not names & set(metric.names)]
    scores, fields = _predict(run, split, [*others, *metrics], forecasts is not None, progress)
    if forecasts is not None:
        what = f"smoe run {run.name}, {split} split"
        write_forecasts(forecasts, fields, init_times, lead_hours, samples.store.grid, what)
    baselines = Baselines(samples.store, samples.targets, run.recipe.data.train_years, progress)
    compared = score_baselines(baselines, init_times, lead_hours, climatology, progress=progress)
    return RunScores(lead_hours, samples.years, len(samples), scores, compared)


def samples_of(run: OpenRun, split: str) -> tuple[WeatherSamples, int]:
    """Returns the samples of a split and their lead.

    Raises:
        DataError: If they have several leads.
    """
    samples = run.task.splits[split]
    assert isinstance(samples, WeatherSamples)
    leads = samples.leads
    if len(leads) != 1:
        raise DataError(
            f"the {split} split of {run.directory.path} draws a lead for each sample, from {min(leads)} to "
            f"{max(leads)} hours: evaluate the test or the validation split"
        )
    return samples, leads[0]


def _predict(
    run: OpenRun, split: str, metrics: list[Metric], keeps: bool, progress: Progress | None
) -> tuple[Scores, dict[str, np.ndarray]]:
    """Makes one pass over a split; returns the scores and, if they are kept, the forecasts in physical units."""
    samples, _ = samples_of(run, split)
    sums = MetricSums(metrics)
    kept: dict[str, list[np.ndarray]] = {name: [] for name in samples.targets}
    done = 0
    for prediction, target in run.predict(split):
        sums.add(prediction, target)
        if keeps:
            for number, name in enumerate(samples.targets):
                normalised = prediction[:, number].double().cpu().numpy()
                kept[name].append(samples.store.to_physical(name, normalised).astype(np.float32))
        done += len(target)
        if progress is not None:
            progress("forecasts", done, len(samples))
    return sums.values(), {name: np.concatenate(fields) for name, fields in kept.items() if fields}


_MOST_NAMED = 3


@dataclass(frozen=True)
class LeadScores:
    """Scores of all forecasts of one lead.

    Attributes:
        lead_hours: Lead of the forecasts.
        num_forecasts: Number of scored forecasts.
        scores: Scores of the file.
        baselines: Scores of persistence and the climatologies on the same forecasts.
        notices: Forecasts that were left out, with reasons.
    """

    lead_hours: int
    num_forecasts: int
    scores: Scores
    baselines: dict[str, Scores]
    notices: tuple[str, ...]


def score_file(
    path: Path,
    store: WeatherStore,
    channels: Sequence[str],
    train_years: tuple[int, int] | None = None,
    *,
    skips_nan: bool = False,
    progress: Progress | None = None,
) -> tuple[list[str], list[LeadScores]]:
    """Scores each lead of a file.

    Args:
        path: NetCDF file or Zarr folder, see `ForecastFile`.
        store: Store of the true fields.
        channels: Channels to score; those that the file or the store lacks are left out with a notice.
        train_years: Years of the climatologies; None for those of the store's statistics.
        skips_nan: Leave out forecasts with NaN instead of refusing the file.
        progress: Called with the progress.

    Returns:
        Notices about the whole file, and the scores of each lead with at least one comparable forecast.

    Raises:
        DataError: If the file cannot be used, or none of it can be compared with the store.
    """
    in_store = [name for name in channels if name in store.channels]
    file = ForecastFile(path, in_store or channels, store.grid)
    notices = list(file.notices)
    for name in channels:
        if name not in store.channels:
            notices.append(f"{name} is not scored: it is not in the store")
        elif name in file.missing:
            notices.append(f"{name} is not scored: it is not in {path}")
    truth = Truth(store, file.channels)
    results = []
    try:
        # One pass over the training years, only if there is something to compare.
        baselines: Baselines | None = None
        for number, lead_hours in enumerate(file.lead_hours):
            found = np.flatnonzero(truth.has(file.init_times + np.timedelta64(lead_hours, "h")))
            outside = np.delete(file.init_times, found)
            said = []
            if len(outside):
                said.append(
                    f"{len(outside)} of {len(file.init_times)} forecasts are for times that are not in the store and "
                    f"are left out: those from {_name_times(outside)}"
                )
            if not len(found):
                notices.append(f"{lead_hours} h: {said[0]}")
                continue
            if baselines is None:
                baselines = Baselines(store, file.channels, train_years or store.statistics_years, progress)
            results.append(_score_lead(file, number, found, baselines, said, skips_nan, progress))
    finally:
        file.close()
    if not results:
        raise DataError(
            f"no forecast of {path} is for a time in the store {store.path}: the file's start from "
            f"{file.init_times[0]} to {file.init_times[-1]}, the store has fields from {store.times[0]} to "
            f"{store.times[-1]}"
        )
    return notices, results


def _score_lead(
    file: ForecastFile,
    lead: int,
    found: np.ndarray,
    baselines: Baselines,
    said: list[str],
    skips_nan: bool,
    progress: Progress | None,
) -> LeadScores:
    truth, lead_hours = baselines.truth, file.lead_hours[lead]
    hours = np.timedelta64(lead_hours, "h")
    years = (file.init_times[found] + hours).astype("datetime64[Y]").astype(int) + 1970
    climatology = truth.mean((int(years.min()), int(years.max())), progress)
    total = MetricSums(physical_metrics(truth.store.grid.latitude, truth.channels, climatology))
    scored: list[np.ndarray] = []
    broken: list[np.datetime64] = []
    num_nan = 0
    text = f"scores of {file.path.name}, {lead_hours} h"
    for first in range(0, len(file.init_times), _FORECASTS_PER_PIECE):
        piece = slice(first, first + _FORECASTS_PER_PIECE)
        keep = found[(found >= first) & (found < piece.stop)]
        if not len(keep):
            continue
        fields = np.stack([file.read(name, piece, lead) for name in truth.channels], axis=1)[keep - first]
        is_nan = ~np.isfinite(fields)
        num_nan += int(is_nan.sum())
        is_whole = ~is_nan.any((1, 2, 3))
        broken += list(file.init_times[keep[~is_whole]])
        inits = file.init_times[keep[is_whole]]
        if len(inits):
            target = torch.from_numpy(truth.read(inits + hours))
            total.add(torch.from_numpy(fields[is_whole]).double(), target)
            scored.append(inits)
        if progress is not None:
            progress(text, min(piece.stop, len(file.init_times)), len(file.init_times))
    if broken:
        what = (
            f"{num_nan} values of {len(broken)} of {len(found)} forecasts for {lead_hours} h are NaN or infinite: "
            f"those from {_name_times(np.array(broken))}"
        )
        if not skips_nan or not scored:
            raise DataError(f"{file.path}: {what}; --skip-nan leaves these forecasts out")
        said.append(f"{what}; they are left out")
    init_times = np.concatenate(scored)
    names: tuple[BaselineName, ...] = BASELINES
    if not truth.has(init_times).all():
        names = ("climatology", "weekly climatology")
        said.append("persistence is not scored: some of the forecasts start at times that are not in the store")
    scores = score_baselines(baselines, init_times, lead_hours, climatology, names, progress)
    return LeadScores(lead_hours, len(init_times), total.values(), scores, tuple(said))


def _name_times(times: np.ndarray) -> str:
    named = ", ".join(str(time) for time in times[:_MOST_NAMED])
    return named if len(times) <= _MOST_NAMED else f"{named}, ..., {times[-1]}"
