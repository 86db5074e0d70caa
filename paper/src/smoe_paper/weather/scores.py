"""Scores of forecasts beside persistence, climatologies and published results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from smoe.reports.run_report import Places
from smoe.training.task import Metric, MetricSums
from smoe_paper.atmosphere.variables import VARIABLES, parse_channel
from smoe_paper.experiments.experiment import Notify, ReportParts, print_result
from smoe_paper.experiments.stored_runs import RunStore
from smoe_paper.experiments.tables import ResultTable, Scale
from smoe_paper.experiments.task import OpenRun
from smoe_paper.metrics import LatitudeWeightedMAE, LatitudeWeightedRMSE
from smoe_paper.weather.model import make_split, open_store
from smoe_paper.weather.recipes import WEATHER_RECIPES, WeatherRecipe, published_results
from smoe_paper.weather.samples import WeatherSamples
from smoe_paper.weather.truth import BASELINES, BaselineName, Baselines, pieces_of

Scores = Mapping[str, float]


def score_baselines(samples: WeatherSamples, train_years: tuple[int, int]) -> dict[str, Scores]:
    """Scores persistence and the climatologies of the training years on the forecasts of some samples."""
    baselines = Baselines(samples.store, samples.targets, train_years)
    channels, latitude = samples.targets, samples.store.grid.latitude
    ones = [1.0] * len(channels)
    metrics: list[Metric] = [kind(channels, latitude, ones) for kind in (LatitudeWeightedRMSE, LatitudeWeightedMAE)]
    sums: dict[BaselineName, MetricSums] = {name: MetricSums(metrics) for name in BASELINES}
    for inits in pieces_of(samples.init_times, "scores of the baselines"):
        valid = inits + np.timedelta64(samples.lead_hours, "h")
        target = torch.from_numpy(baselines.truth.read(valid))
        for name, total in sums.items():
            total.add(torch.from_numpy(baselines.forecast(name, inits, valid)), target)
    return {name: total.values() for name, total in sums.items()}


def samples_of(run: OpenRun, split: str) -> WeatherSamples:
    samples = run.task.splits[split]
    assert isinstance(samples, WeatherSamples)
    return samples


def physical_predictions(run: OpenRun, split: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields forecasts and truths of a split in physical units."""
    samples = samples_of(run, split)
    for prediction, truth in run.outputs(split):
        yield _to_physical(samples, prediction), _to_physical(samples, truth)


def _to_physical(samples: WeatherSamples, fields: Tensor) -> Tensor:
    physical = [samples.store.to_physical(name, fields[:, number]) for number, name in enumerate(samples.targets)]
    return torch.stack(physical, dim=1)


def print_run_scores(run: OpenRun, split: str) -> None:
    """Scores a run beside persistence, climatologies and the paper, and prints a table."""
    samples = samples_of(run, split)
    baselines = score_baselines(samples, run.recipe.data.train_years)
    published = published_results(run.name, samples.lead_hours)
    print_result(run.name, split, run.evaluate(split), run.directory.path, published, baselines)
    Console(highlight=False).print(
        "rmse: root of the mean over times and area; mae: mean absolute error; both weighted by latitude. The paper's "
        "numbers are of ERA5, 2017-2018: a simulated atmosphere is another task, to be judged by its own persistence "
        "and climatology.",
        soft_wrap=True,
    )


def report_parts(run: OpenRun, split: str | None, notify: Notify) -> ReportParts:
    """The globe of the store, persistence and climatologies on the split, and what the paper prints."""
    data = run.recipe.data
    store = open_store(data)
    baselines: dict[str, Scores] = {}
    if split is not None:
        notify(f"{run.name}: scoring persistence and climatologies")
        baselines = score_baselines(samples_of(run, split), data.train_years)
    return ReportParts(
        places=Places.globe(store.grid.latitude, store.grid.longitude),
        targets=tuple((name, VARIABLES[parse_channel(name).variable].units) for name in data.targets),
        data={"store": store.path.name, "checksum of the store": store.checksum},
        baselines=baselines,
        published={name: published_results(name, data.lead_hours) for name in WEATHER_RECIPES},
    )


def store_references(
    tables: Iterable[ResultTable], scale: Scale, data: Path, store: RunStore, notify: Callable[[str], None]
) -> None:
    """Scores the references of the tables on the test forecasts of their rows, unless the scores are stored."""
    for table in tables:
        recipe = scale.recipe(table.rows[0], seed=0)
        assert isinstance(recipe, WeatherRecipe)
        lead_hours = recipe.data.lead_hours
        names = {f"{name.replace(' ', '-')}-{lead_hours}h": name for name in BASELINES}
        if not set(table.references) <= set(names):
            raise ValueError(f"{table.name} refers to {', '.join(table.references)}, which are not {', '.join(names)}")
        if all(store.read_reference(reference) for reference in table.references):
            continue
        notify(f"scoring {', '.join(BASELINES)} at {lead_hours} hours")
        weather = open_store(replace(recipe.data, store=data))
        samples = make_split(recipe, weather, "test", notify)
        scores = score_baselines(samples, recipe.data.train_years)
        for reference, name in names.items():
            store.write_reference(reference, {"label": name.capitalize(), "test": scores[name]})
