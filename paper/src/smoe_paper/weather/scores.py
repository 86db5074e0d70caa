"""Truth of forecasts in physical units, forecasts without training, and scores beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from smoe.errors import DataError
from smoe.reports.run_report import Places
from smoe.training.task import Metric, MetricSums
from smoe_paper.atmosphere.fields import describe_years, years_of
from smoe_paper.atmosphere.variables import VARIABLES, parse_channel
from smoe_paper.experiments.experiment import Notify, ReportParts
from smoe_paper.experiments.stored_runs import RunStore
from smoe_paper.experiments.tables import ResultTable, Scale
from smoe_paper.experiments.task import OpenRun
from smoe_paper.metrics import LatitudeWeightedMAE, LatitudeWeightedRMSE
from smoe_paper.weather.model import make_split
from smoe_paper.weather.recipes import WEATHER_RECIPES, WeatherRecipe, published_results
from smoe_paper.weather.store import NUM_WEEKS, WeatherSamples, WeatherStore, week_of_year

_TIMES_PER_PIECE = 128


def pieces_of(times: np.ndarray, text: str) -> Iterator[np.ndarray]:
    """Yields times in pieces, with a bar on a terminal."""
    console = Console(stderr=True)
    starts = range(0, len(times), _TIMES_PER_PIECE)
    for first in track(starts, text, console=console, transient=True, disable=not console.is_terminal):
        yield times[first : first + _TIMES_PER_PIECE]


class Truth:
    """Some channels of a store, in physical units."""

    def __init__(self, store: WeatherStore, channels: Sequence[str]) -> None:
        self.store, self.channels, self._indices = store, tuple(channels), store.channel_indices(channels)

    def read(self, times: np.ndarray) -> np.ndarray:
        """Returns the fields at some times, float64, `(len(times), C, H, W)`."""
        missing = times[~np.isin(times, self.store.times)]
        if len(missing):
            raise DataError(f"{missing[0]} is not among the times of the store {self.store.path}")
        rows = np.searchsorted(self.store.times, times)
        fields = np.stack([self.store.fields[row][self._indices] for row in rows]).astype(np.float64)
        for number, name in enumerate(self.channels):
            fields[:, number] = self.store.to_physical(name, fields[:, number])
        return fields

    def times_of(self, years: tuple[int, int]) -> np.ndarray:
        of_year = years_of(self.store.times)
        found = self.store.times[(of_year >= years[0]) & (of_year <= years[1])]
        if not len(found):
            held = describe_years(self.store.years())
            raise DataError(f"{self.store.path} has no times in the years {years[0]} to {years[1]}; it has {held}")
        return found


BaselineName = Literal["persistence", "climatology", "weekly climatology"]
BASELINES: tuple[BaselineName, ...] = ("persistence", "climatology", "weekly climatology")


class Baselines:
    """Forecasts from the training years alone, in physical units; memory holds 53 fields for each channel."""

    def __init__(self, store: WeatherStore, channels: Sequence[str], train_years: tuple[int, int]) -> None:
        self.truth = Truth(store, channels)
        sums = np.zeros((NUM_WEEKS, len(self.truth.channels), *store.grid.shape))
        counts = np.zeros(NUM_WEEKS)
        times = self.truth.times_of(train_years)
        for piece in pieces_of(times, f"climatology of {train_years[0]}-{train_years[1]}"):
            weeks, fields = week_of_year(piece), self.truth.read(piece)
            np.add.at(sums, weeks, fields)
            counts += np.bincount(weeks, minlength=NUM_WEEKS)
        self.climatology = sums.sum(0) / counts.sum()
        # A week without a training time has the mean NaN, and so has the score of a forecast for it.
        with np.errstate(invalid="ignore"):
            self.weekly_climatology = sums / counts[:, None, None, None]

    def forecast(self, name: BaselineName, init_times: np.ndarray, valid_times: np.ndarray) -> np.ndarray:
        """Returns the forecasts made at some times for others, float64, `(B, C, H, W)`."""
        if name == "persistence":
            return self.truth.read(init_times)
        if name == "climatology":
            return np.repeat(self.climatology[None], len(init_times), axis=0)
        return self.weekly_climatology[week_of_year(valid_times)]


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
            "rmse: root of the mean over times and area; mae: mean absolute error; both weighted by latitude. The "
            "paper's numbers are of ERA5, 2017-2018: a simulated atmosphere is another task, to be judged by its own "
            "persistence and climatology.",
        ),
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
        samples = make_split(recipe, WeatherStore.open(data), "test", notify)
        scores = score_baselines(samples, recipe.data.train_years)
        for reference, name in names.items():
            store.write_reference(reference, {"label": name.capitalize(), "test": scores[name]})
