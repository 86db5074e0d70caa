"""Scores of forecasts beside persistence, climatologies and published results."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from smoe.training.task import Metric, MetricSums
from smoe_paper.atmosphere.variables import VARIABLES, parse_channel
from smoe_paper.experiments.stored_runs import RunStore
from smoe_paper.experiments.tables import ResultTable, Scale
from smoe_paper.experiments.task import OpenRun
from smoe_paper.metrics import AnomalyCorrelation, LatitudeWeightedMAE, LatitudeWeightedRMSE, MeanOfRootsRMSE
from smoe_paper.weather.model import make_split, open_store
from smoe_paper.weather.recipes import PUBLISHED, PUBLISHED_DATA, WeatherRecipe
from smoe_paper.weather.samples import WeatherSamples
from smoe_paper.weather.store import WeatherStore
from smoe_paper.weather.truth import BASELINES, BaselineName, Baselines, Truth, pieces_of, write_forecasts

Scores = Mapping[str, float]


def metrics_of(
    store: WeatherStore, channels: Sequence[str], climatology: np.ndarray, *, are_normalised: bool = False
) -> list[Metric]:
    """Returns all scores of forecasts in physical or in normalised units."""
    indices, latitude = store.channel_indices(channels), store.grid.latitude
    scales, offsets, inverses = [1.0] * len(channels), [0.0] * len(channels), {}
    if are_normalised:
        scales, offsets = store.std[indices], store.mean[indices]
        # The network forecasts the logarithm of precipitation.
        inverses = {name: partial(store.to_physical, name) for name in channels if name == "tp"}
    errors = (LatitudeWeightedRMSE, MeanOfRootsRMSE, LatitudeWeightedMAE)
    return [
        *(kind(channels, latitude, scales, inverses=inverses) for kind in errors),
        AnomalyCorrelation(channels, latitude, scales, climatology, offsets=offsets, inverses=inverses),
    ]


def score_baselines(
    samples: WeatherSamples, train_years: tuple[int, int], climatology: np.ndarray | None = None
) -> dict[str, Scores]:
    """Scores persistence and the climatologies of the training years on the forecasts of some samples."""
    baselines = Baselines(samples.store, samples.targets, train_years)
    truth = baselines.truth
    metrics = metrics_of(truth.store, truth.channels, truth.mean(samples.years) if climatology is None else climatology)
    sums: dict[BaselineName, MetricSums] = {name: MetricSums(metrics) for name in BASELINES}
    for inits in pieces_of(samples.init_times, "scores of the baselines"):
        valid = inits + np.timedelta64(samples.lead_hours, "h")
        target = torch.from_numpy(truth.read(valid))
        for name, total in sums.items():
            total.add(torch.from_numpy(baselines.forecast(name, inits, valid)), target)
    return {name: total.values() for name, total in sums.items()}


def evaluate_run(run: OpenRun, split: str, forecasts: Path | None = None) -> tuple[Scores, dict[str, Scores]]:
    """Scores a run, and the baselines on the same forecasts; writes the run's forecasts if a file is given."""
    assert isinstance(run.recipe, WeatherRecipe)
    samples = samples_of(run, split)
    store, targets = samples.store, samples.targets
    climatology = Truth(store, targets).mean(samples.years)
    metrics: list[Metric] = metrics_of(store, targets, climatology, are_normalised=True)
    names = {name for metric in metrics for name in metric.names}
    sums = MetricSums([*(metric for metric in run.task.metrics if not names & set(metric.names)), *metrics])
    kept: list[Tensor] = []
    for prediction, target in run.predict(split):
        sums.add(prediction, target)
        if forecasts is not None:
            kept.append(_to_physical(samples, prediction.double().cpu()))
    if forecasts is not None:
        fields = torch.cat(kept).numpy()
        by_channel = {name: fields[:, number] for number, name in enumerate(targets)}
        what = f"smoe run {run.name}, {split} split"
        write_forecasts(forecasts, by_channel, samples.init_times, samples.lead_hours, store.grid, what)
    return sums.values(), score_baselines(samples, run.recipe.data.train_years, climatology)


def samples_of(run: OpenRun, split: str) -> WeatherSamples:
    samples = run.task.splits[split]
    assert isinstance(samples, WeatherSamples)
    return samples


def physical_predictions(run: OpenRun, split: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields forecasts and truths of a split in physical units."""
    samples = samples_of(run, split)
    for prediction, truth in run.predict(split):
        yield _to_physical(samples, prediction), _to_physical(samples, truth)


def _to_physical(samples: WeatherSamples, fields: Tensor) -> Tensor:
    physical = [samples.store.to_physical(name, fields[:, number]) for number, name in enumerate(samples.targets)]
    return torch.stack(physical, dim=1)


_PREFIXES = ("rmse", "mean_rmse", "mae", "acc")
_LEGEND = (
    "rmse: root of the mean over times and area; mean_rmse: mean over times of the roots; mae: mean absolute error; "
    "acc: anomaly correlation. All weighted by latitude."
)


def print_run_scores(run: OpenRun, split: str, forecasts: Path | None) -> None:
    """Scores a run, prints its table, and writes its forecasts if a file is given."""
    scores, baselines = evaluate_run(run, split, forecasts)
    samples = samples_of(run, split)
    first, last = samples.years
    broken = [name for name, value in scores.items() if not math.isfinite(value)]
    if broken:
        path = run.directory.path
        _warn(f"the forecasts of {path} hold NaN or infinite values: {', '.join(broken)} cannot be computed")
    title = f"{run.name}, {split} split ({first}-{last}): {len(samples)} forecasts of {samples.lead_hours} h"
    print_scores(title, run.name, scores, baselines)
    print_published(run.name, samples.lead_hours, scores, baselines)
    if forecasts is not None:
        _warn(f"forecasts: {forecasts}")


def _warn(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def print_scores(
    title: str,
    name: str,
    scores: Scores,
    baselines: Mapping[str, Scores],
    console: Console | None = None,
    legend: str = _LEGEND,
) -> None:
    """Prints all scores of some forecasts in one column, beside those of baselines on the same forecasts."""
    console = console or Console(highlight=False)
    # Few lines and folded names, so that nothing is cut off in a file or a terminal of 80 columns.
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    table.add_column("score", no_wrap=True)
    for header in (name, *baselines):
        table.add_column(header, justify="right", overflow="fold")
    columns = [scores, *baselines.values()]
    # Each once, those of the forecasts first.
    for metric in _ordered(dict.fromkeys(name for column in columns for name in column)):
        values = [column.get(metric) for column in columns]
        table.add_row(_describe(metric), *("" if value is None else format_score(value) for value in values))
    console.print(table)
    console.print(legend, soft_wrap=True)


def print_published(name: str, lead_hours: int, scores: Scores, baselines: Mapping[str, Scores]) -> None:
    """Prints the RMSE of a run above the published ones for the same lead; the recipe's row is marked."""
    console = Console(highlight=False)
    published = {key for row in PUBLISHED for key in row.rmse}
    scored = [metric.removeprefix("rmse_") for metric in scores if metric.startswith("rmse_")]
    channels = [channel for channel in scored if (channel, lead_hours) in published]
    if not channels:
        console.print(f"nothing was published for {', '.join(scored)} at {lead_hours} h", soft_wrap=True)
        return
    table = Table(title=f"RMSE at {lead_hours} h; published rows: {PUBLISHED_DATA}", title_justify="left")
    for header in ("model", "source"):
        table.add_column(header)
    for channel in channels:
        table.add_column(f"{channel_label(channel)}, {_units(channel)}", justify="right")
    for label, row in ((name, scores), *baselines.items()):
        table.add_row(label, "here", *(format_score(row[f"rmse_{channel}"]) for channel in channels))
    for row in PUBLISHED:
        cells = []
        for key in ((channel, lead_hours) for channel in channels):
            spread = f" ± {row.spread[key]:g}" if key in row.spread else ""
            cells.append(f"{row.rmse[key]:.{0 if key[0] == 'z_500' else 2}f}{spread}" if key in row.rmse else "")
        is_same = row.recipe == name.removesuffix("-rasp")
        table.add_row(f"{row.model} (this recipe)" if is_same else row.model, row.source, *cells)
    console.print(table)
    console.print(
        f"Published rows are of {PUBLISHED_DATA}, at 5.625 degrees where nothing else is said. They can be compared "
        "with the rows above them only if the store holds the same years of ERA5: a simulated atmosphere is another "
        "task, to be judged by its own persistence and climatology.",
        soft_wrap=True,
    )


def format_score(value: float) -> str:
    """Returns a number with four significant digits."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _ordered(scores: Mapping[str, object]) -> Sequence[str]:
    """Orders scores by kind; other values, such as the loss, come last."""
    known = [name for prefix in _PREFIXES for name in scores if name.startswith(f"{prefix}_")]
    return [*known, *(name for name in scores if name not in known)]


def _describe(metric: str) -> str:
    prefix = next((prefix for prefix in _PREFIXES if metric.startswith(f"{prefix}_")), None)
    if prefix is None:
        return metric
    channel = metric.removeprefix(f"{prefix}_")
    return metric if prefix == "acc" else f"{metric}, {_units(channel)}"


def channel_label(channel: str) -> str:
    return channel.replace("_", "").upper()


def _units(channel: str) -> str:
    return VARIABLES[parse_channel(channel).variable].units


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
