"""Forecasts in physical units, and scores of forecasts without training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from smoe.errors import DataError
from smoe.reports.run_report import Places
from smoe.training.task import MetricSums
from smoe_paper.atmosphere.fields import describe_years, years_of
from smoe_paper.atmosphere.variables import VARIABLES, parse_channel
from smoe_paper.experiments.experiment import Notify, ReportParts
from smoe_paper.experiments.stored_runs import RunStore
from smoe_paper.experiments.tables import ResultTable, Scale
from smoe_paper.experiments.task import OpenRun
from smoe_paper.metrics import LatitudeWeightedRMSE
from smoe_paper.weather.model import make_split
from smoe_paper.weather.recipes import WEATHER_RECIPES, WeatherData, WeatherRecipe, published_results
from smoe_paper.weather.store import NUM_WEEKS, WeatherSamples, WeatherStore, week_of_year

_TIMES_PER_PIECE = 128
BASELINES = ("persistence", "climatology", "weekly climatology")
Scores = Mapping[str, float]


def read_fields(samples: WeatherSamples, times: np.ndarray) -> np.ndarray:
    """The samples' targets at times of their store, in physical units, float64, `(len(times), C, H, W)`."""
    store, index = samples.store, samples.store.channel_indices(samples.targets)
    rows = np.searchsorted(store.times, times)
    fields = np.stack([store.fields[row][index] for row in rows]).astype(np.float64)
    return store.to_physical(samples.targets, fields)


def data_checksum(data: WeatherData) -> str:
    return WeatherStore.open_named(data.store).checksum


def score_baselines(samples: WeatherSamples, train_years: tuple[int, int]) -> dict[str, Scores]:
    """Scores persistence and the climatologies of the training years on the forecasts of some samples."""
    store = samples.store
    of_year = years_of(store.times)
    times = store.times[(of_year >= train_years[0]) & (of_year <= train_years[1])]
    if not len(times):
        held = describe_years(store.years())
        raise DataError(f"{store.path} has no times in the years {train_years[0]} to {train_years[1]}; it has {held}")
    sums = np.zeros((NUM_WEEKS, len(samples.targets), *store.grid.shape))
    for piece in _pieces(times):
        np.add.at(sums, week_of_year(piece), read_fields(samples, piece))
    counts = np.bincount(week_of_year(times), minlength=NUM_WEEKS)
    climatology = sums.sum(0) / counts.sum()
    # A week without a training time has the mean NaN, and so has the score of a forecast for it.
    with np.errstate(invalid="ignore"):
        weekly = sums / counts[:, None, None, None]
    metric = LatitudeWeightedRMSE(samples.targets, store.grid.latitude, [1.0] * len(samples.targets))
    totals = {name: MetricSums([metric]) for name in BASELINES}
    for inits in _pieces(samples.init_times):
        valid = inits + np.timedelta64(samples.lead_hours, "h")
        truth = read_fields(samples, valid)
        forecasts = (
            read_fields(samples, inits),
            np.broadcast_to(climatology, truth.shape).copy(),
            weekly[week_of_year(valid)],
        )
        for name, forecast in zip(BASELINES, forecasts, strict=True):
            totals[name].add(torch.from_numpy(forecast), torch.from_numpy(truth))
    return {name: total.values() for name, total in totals.items()}


def _pieces(times: np.ndarray) -> list[np.ndarray]:
    return np.array_split(times, range(_TIMES_PER_PIECE, len(times), _TIMES_PER_PIECE))


def samples_of(run: OpenRun, split: str) -> WeatherSamples:
    samples = run.task.splits[split]
    assert isinstance(samples, WeatherSamples)
    return samples


def physical_predictions(run: OpenRun, split: str) -> Iterator[tuple[Tensor, Tensor]]:
    samples = samples_of(run, split)
    for pair in run.outputs(split):
        prediction, truth = (samples.store.to_physical(samples.targets, fields) for fields in pair)
        yield prediction, truth


def report_parts(run: OpenRun, split: str | None, notify: Notify) -> ReportParts:
    """The globe of the store, persistence and climatologies on the split, and what the paper prints."""
    data = run.recipe.data
    store = WeatherStore.open_named(data.store)
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
        remarks=(
            "rmse: root of the mean over times and area, weighted by latitude. The paper's numbers are of ERA5, "
            "2017-2018: a simulated atmosphere is another task, to be judged by its own persistence and climatology.",
        ),
    )


def store_references(
    tables: Iterable[ResultTable], scale: Scale, data: Path, store: RunStore, notify: Callable[[str], None]
) -> None:
    """Scores the references of the tables on the test forecasts of their rows, unless those of the data are stored."""
    checksum = WeatherStore.open(data).checksum[:8]
    for table in tables:
        recipe = scale.recipe(table.rows[0], seed=0)
        assert isinstance(recipe, WeatherRecipe)
        lead_hours = recipe.data.lead_hours
        names = {f"{name.replace(' ', '-')}-{lead_hours}h": name for name in BASELINES}
        if not set(table.references) <= set(names):
            raise ValueError(f"{table.name} refers to {', '.join(table.references)}, which are not {', '.join(names)}")
        if all((store.read_reference(name) or {}).get("data") == checksum for name in table.references):
            continue
        notify(f"scoring {', '.join(BASELINES)} at {lead_hours} hours")
        samples = make_split(recipe, WeatherStore.open(data), "test", notify)
        scores = score_baselines(samples, recipe.data.train_years)
        for reference, name in names.items():
            store.write_reference(reference, {"label": name.capitalize(), "test": scores[name], "data": checksum})
