"""Scores a trained weather run beside baselines from the same data, and writes its forecasts."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from smoe.errors import DataError
from smoe.training.metrics import Metric, MetricSums
from smoe_paper.experiments.open_run import OpenRun
from smoe_paper.weather.data.baselines import Baselines
from smoe_paper.weather.data.samples import WeatherSamples
from smoe_paper.weather.data.truth import Progress, Truth
from smoe_paper.weather.data.write_forecasts import ForecastWriter, open_forecast_writer
from smoe_paper.weather.recipes import WeatherRecipe
from smoe_paper.weather.scores import Scores, metrics_of, score_baselines


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
    run: OpenRun, split: str, metrics: list[Metric], writer: ForecastWriter | None, progress: Progress | None
) -> Scores:
    """Makes one pass over a split, for the scores and for the file."""
    samples, _ = samples_of(run, split)
    sums = MetricSums(metrics)
    done = 0
    for prediction, target in run.predict(split):
        sums.add(prediction, target)
        if writer is not None:
            for number, name in enumerate(samples.targets):
                normalised = prediction[:, number].double().cpu().numpy()
                writer.write(name, done, 0, samples.store.to_physical(name, normalised))
        done += len(target)
        if progress is not None:
            progress("forecasts", done, len(samples))
    return sums.values()
