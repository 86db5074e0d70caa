"""Scores a trained weather run beside baselines from the same data, and writes its forecasts."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from smoe.errors import DataError
from smoe.experiments.open_run import OpenRun
from smoe.metrics import Metric, MetricSums
from smoe.paper.weather.data.baselines import Baselines
from smoe.paper.weather.data.samples import WeatherSamples
from smoe.paper.weather.data.truth import Progress, Truth
from smoe.paper.weather.data.write_forecasts import ForecastWriter, open_forecast_writer
from smoe.paper.weather.recipes import WeatherRecipe
from smoe.paper.weather.scores import Scores, metrics_of, score_baselines
from smoe.training.prediction import predict_split


@dataclass(frozen=True)
class RunScores:
    """The scores of a run on a split.

    Attributes:
        lead_hours: of the forecasts.
        years: first and last of the split.
        num_forecasts: scored.
        scores: of the run.
        baselines: of persistence and the climatologies, on the same forecasts.
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
        run: opened with the split.
        split: such as `test`.
        forecasts: file to write the forecasts to, `.nc` or `.zarr`.
        progress: told how far it has come.

    Raises:
        DataError: if the split has samples of several leads, as the training data of a continuous lead have.
    """
    assert isinstance(run.recipe, WeatherRecipe)
    samples, lead_hours = samples_of(run, split)
    init_times = np.array([samples.init_time(index) for index in range(len(samples))])
    truth = Truth(samples.store, samples.targets)
    climatology = truth.mean(samples.years, progress)
    metrics: list[Metric] = metrics_of(samples.store, samples.targets, climatology)
    names = {name for metric in metrics for name in metric.names}
    others = [metric for metric in run.task.metrics if not names & set(metric.names)]
    writing = (
        nullcontext()
        if forecasts is None
        else open_forecast_writer(
            forecasts,
            samples.targets,
            init_times,
            (lead_hours,),
            samples.store.grid,
            {"source": f"smoe run {run.name}, {split} split"},
        )
    )
    with writing as writer:
        scores = _predict(run, split, [*others, *metrics], writer, progress)
    baselines = Baselines(samples.store, samples.targets, run.recipe.data.train_years, progress)
    compared = score_baselines(baselines, init_times, lead_hours, climatology, progress=progress)
    return RunScores(lead_hours, samples.years, len(samples), scores, compared)


def samples_of(run: OpenRun, split: str) -> tuple[WeatherSamples, int]:
    """The samples of a split and their lead.

    Raises:
        DataError: if they have several.
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
    run: OpenRun, split: str, metrics: list[Metric], writer: ForecastWriter | None, progress: Progress | None
) -> Scores:
    """Makes one pass over a split, for the scores and for the file."""
    samples, _ = samples_of(run, split)
    sums = MetricSums(metrics)
    done = 0
    for prediction, target in predict_split(run.task, run.recipe.training, split):
        sums.add(prediction, target)
        if writer is not None:
            for number, name in enumerate(samples.targets):
                normalised = prediction[:, number].double().cpu().numpy()
                writer.write(name, done, 0, samples.store.to_physical(name, normalised))
        done += len(target)
        if progress is not None:
            progress("forecasts", done, len(samples))
    return sums.values()
