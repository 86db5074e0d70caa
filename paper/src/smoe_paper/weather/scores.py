"""Scores of forecasts, of runs and of files, beside persistence and climatologies."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from smoe.errors import DataError
from smoe.training.task import Metric, MetricSums
from smoe_paper.atmosphere.variables import VARIABLES, parse_channel
from smoe_paper.experiments.stored_runs import RunStore
from smoe_paper.experiments.tables import ResultTable, Scale
from smoe_paper.experiments.task import OpenRun
from smoe_paper.metrics import AnomalyCorrelation, LatitudeWeightedMAE, LatitudeWeightedRMSE, MeanOfRootsRMSE
from smoe_paper.weather.forecasts import ForecastFile, write_forecasts
from smoe_paper.weather.model import make_split, open_store
from smoe_paper.weather.recipes import LEADS_OF_TABLES, PUBLISHED, PUBLISHED_DATA, WeatherRecipe
from smoe_paper.weather.samples import WeatherSamples
from smoe_paper.weather.store import WeatherStore
from smoe_paper.weather.tables import WeatherScoreOptions
from smoe_paper.weather.truth import BASELINES, BaselineName, Baselines, Scores, Truth, show_progress

_FORECASTS_PER_PIECE = 64


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
    baselines: Baselines,
    init_times: np.ndarray,
    lead_hours: int,
    climatology: np.ndarray,
    names: Sequence[BaselineName] = BASELINES,
) -> dict[str, Scores]:
    truth = baselines.truth
    metrics = metrics_of(truth.store, truth.channels, climatology)
    sums: dict[BaselineName, MetricSums] = {name: MetricSums(metrics) for name in names}
    for first in show_progress(range(0, len(init_times), _FORECASTS_PER_PIECE), "scores of the baselines"):
        inits = init_times[first : first + _FORECASTS_PER_PIECE]
        valid = inits + np.timedelta64(lead_hours, "h")
        target = torch.from_numpy(truth.read(valid))
        for name, total in sums.items():
            total.add(torch.from_numpy(np.ascontiguousarray(baselines.forecast(name, inits, valid))), target)
    return {name: total.values() for name, total in sums.items()}


@dataclass(frozen=True)
class LeadScores:
    """Scores of all forecasts of one lead, and of persistence and the climatologies on the same forecasts."""

    lead_hours: int
    num_forecasts: int
    scores: Scores
    baselines: Mapping[str, Scores]
    notices: tuple[str, ...] = ()


def evaluate_run(run: OpenRun, split: str, forecasts: Path | None = None) -> LeadScores:
    assert isinstance(run.recipe, WeatherRecipe)
    samples, lead_hours = samples_of(run, split)
    init_times = samples.init_times
    truth = Truth(samples.store, samples.targets)
    climatology = truth.mean(samples.years)
    metrics: list[Metric] = metrics_of(samples.store, samples.targets, climatology, are_normalised=True)
    names = {name for metric in metrics for name in metric.names}
    others = [metric for metric in run.task.metrics if not names & set(metric.names)]
    scores, fields = _predict(run, split, [*others, *metrics], forecasts is not None)
    if forecasts is not None:
        what = f"smoe run {run.name}, {split} split"
        write_forecasts(forecasts, fields, init_times, lead_hours, samples.store.grid, what)
    baselines = Baselines(samples.store, samples.targets, run.recipe.data.train_years)
    compared = score_baselines(baselines, init_times, lead_hours, climatology)
    return LeadScores(lead_hours, len(samples), scores, compared)


def samples_of(run: OpenRun, split: str) -> tuple[WeatherSamples, int]:
    samples = run.task.splits[split]
    assert isinstance(samples, WeatherSamples)
    leads = samples.leads
    if len(leads) != 1:
        raise DataError(
            f"the {split} split of {run.directory.path} draws a lead for each sample, from {min(leads)} to "
            f"{max(leads)} hours: evaluate the test or the validation split"
        )
    return samples, leads[0]


def physical_predictions(run: OpenRun, split: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields forecasts and truths of a split in physical units."""
    samples, _ = samples_of(run, split)
    for batch in run.predict(split):
        prediction, truth = (
            torch.stack(
                [samples.store.to_physical(name, part[:, number]) for number, name in enumerate(samples.targets)], dim=1
            )
            for part in batch
        )
        yield prediction, truth


def _predict(run: OpenRun, split: str, metrics: list[Metric], keeps: bool) -> tuple[Scores, dict[str, np.ndarray]]:
    """Makes one pass over a split; returns the scores and, if they are kept, the forecasts in physical units."""
    samples, _ = samples_of(run, split)
    sums = MetricSums(metrics)
    kept: dict[str, list[np.ndarray]] = {name: [] for name in samples.targets}
    for prediction, target in run.predict(split):
        sums.add(prediction, target)
        if keeps:
            for number, name in enumerate(samples.targets):
                normalised = prediction[:, number].double().cpu().numpy()
                kept[name].append(samples.store.to_physical(name, normalised).astype(np.float32))
    return sums.values(), {name: np.concatenate(fields) for name, fields in kept.items() if fields}


_MOST_NAMED = 3


def score_file(
    path: Path,
    store: WeatherStore,
    channels: Sequence[str],
    train_years: tuple[int, int] | None = None,
    *,
    skips_nan: bool = False,
) -> tuple[list[str], list[LeadScores]]:
    """Scores each lead of a file.

    Returns:
        Notices about the whole file, and the scores of each lead with at least one comparable forecast.
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
                baselines = Baselines(store, file.channels, train_years or store.statistics_years)
            results.append(_score_lead(file, number, found, baselines, said, skips_nan))
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
) -> LeadScores:
    truth, lead_hours = baselines.truth, file.lead_hours[lead]
    hours = np.timedelta64(lead_hours, "h")
    years = (file.init_times[found] + hours).astype("datetime64[Y]").astype(int) + 1970
    climatology = truth.mean((int(years.min()), int(years.max())))
    total = MetricSums(metrics_of(truth.store, truth.channels, climatology))
    scored: list[np.ndarray] = []
    broken: list[np.datetime64] = []
    num_nan = 0
    text = f"scores of {file.path.name}, {lead_hours} h"
    for first in show_progress(range(0, len(file.init_times), _FORECASTS_PER_PIECE), text):
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
    scores = score_baselines(baselines, init_times, lead_hours, climatology, names)
    return LeadScores(lead_hours, len(init_times), total.values(), scores, tuple(said))


def _name_times(times: np.ndarray) -> str:
    named = ", ".join(str(time) for time in times[:_MOST_NAMED])
    return named if len(times) <= _MOST_NAMED else f"{named}, ..., {times[-1]}"


_PREFIXES = ("rmse", "mean_rmse", "mae", "acc")
_LEGEND = (
    "rmse: root of the mean over times and area; mean_rmse: mean over times of the roots; mae: mean absolute error; "
    "acc: anomaly correlation. All weighted by latitude."
)


def print_run_scores(run: OpenRun, split: str, forecasts: Path | None) -> None:
    """Scores a run, prints its table, and writes its forecasts if a file is given."""
    result = evaluate_run(run, split, forecasts)
    first, last = samples_of(run, split)[0].years
    broken = [name for name, value in result.scores.items() if not math.isfinite(value)]
    if broken:
        path = run.directory.path
        _warn(f"the forecasts of {path} hold NaN or infinite values: {', '.join(broken)} cannot be computed")
    title = f"{run.name}, {split} split ({first}-{last}): {result.num_forecasts} forecasts of {result.lead_hours} h"
    print_scores(title, run.name, result.scores, result.baselines)
    print_published(run.name, result.lead_hours, result.scores, result.baselines, run.name)
    if forecasts is not None:
        _warn(f"forecasts: {forecasts}")


def print_file_scores(options: WeatherScoreOptions) -> None:
    file, data = options.file, options.data
    assert data.store is not None
    store = WeatherStore.open(data.store)
    notices, results = score_file(file, store, data.targets, data.train_years, skips_nan=options.skip_nan)
    for notice in notices:
        _warn(f"{file.name}: {notice}")
    for result in results:
        for notice in result.notices:
            _warn(f"{file.name}, {result.lead_hours} h: {notice}")
        title = f"{file.name}: {result.num_forecasts} forecasts of {result.lead_hours} h"
        print_scores(title, file.name, result.scores, result.baselines)
        print_published(file.name, result.lead_hours, result.scores, result.baselines)


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


def print_published(
    name: str,
    lead_hours: int,
    scores: Scores,
    baselines: Mapping[str, Scores],
    recipe: str | None = None,
    console: Console | None = None,
) -> None:
    """Prints the RMSE of some forecasts above the published ones for the same lead; the recipe's row is marked."""
    console = console or Console(highlight=False)
    published = {key for row in PUBLISHED for key in row.rmse}
    scored = [metric.removeprefix("rmse_") for metric in scores if metric.startswith("rmse_")]
    channels = [channel for channel in scored if (channel, lead_hours) in published]
    if not channels:
        leads = " and ".join(f"{lead} h" for lead in LEADS_OF_TABLES)
        known = ", ".join(dict.fromkeys(channel for channel, _ in sorted(published, reverse=True)))
        text = f"nothing was published for {', '.join(scored)} at {lead_hours} h; the tables have {known} at {leads}"
        console.print(text, soft_wrap=True)
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
        is_same = recipe is not None and row.recipe == recipe.removesuffix("-rasp")
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
        climatology = Truth(weather, samples.targets).mean(samples.years)
        baselines = Baselines(weather, samples.targets, recipe.data.train_years)
        scores = score_baselines(baselines, samples.init_times, lead_hours, climatology)
        for reference, name in names.items():
            store.write_reference(reference, {"label": name.capitalize(), "test": scores[name]})
