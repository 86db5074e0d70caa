"""Tables of scores on the terminal."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from smoe.training.progress import ProgressBar
from smoe_paper.atmosphere.variables import VARIABLES, parse_channel
from smoe_paper.experiments.stored_runs import RunStore
from smoe_paper.experiments.tables import ResultTable, Scale
from smoe_paper.experiments.task import OpenRun
from smoe_paper.weather.model import make_split, open_store
from smoe_paper.weather.recipes import LEADS_OF_TABLES, PUBLISHED, PUBLISHED_DATA, WeatherRecipe
from smoe_paper.weather.samples import WeatherSamples
from smoe_paper.weather.scores import evaluate_run, score_baselines, score_file
from smoe_paper.weather.store import WeatherStore
from smoe_paper.weather.truth import BASELINES, Baselines, Truth

Scores = Mapping[str, float]

_PUBLISHED_CHANNELS = ("z_500", "t_850", "t2m")
_PREFIXES = ("rmse", "mean_rmse", "mae", "acc")
_LEGEND = (
    "rmse: root of the mean over times and area; mean_rmse: mean over times of the roots; mae: mean absolute error; "
    "acc: anomaly correlation. All weighted by latitude."
)


def print_run_scores(run: OpenRun, split: str, forecasts: Path | None) -> None:
    """Scores a run, prints its table, and writes its forecasts if a file is given."""
    with ProgressBar() as bar:
        result = evaluate_run(run, split, forecasts, lambda text, done, total: bar.show(done, total, text))
    first, last = result.years
    broken = [name for name, value in result.scores.items() if not math.isfinite(value)]
    if broken:
        path = run.directory.path
        _warn(f"the forecasts of {path} hold NaN or infinite values: {', '.join(broken)} cannot be computed")
    title = f"{run.name}, {split} split ({first}-{last}): {result.num_forecasts} forecasts of {result.lead_hours} h"
    print_scores(title, run.name, result.scores, result.baselines)
    print_published(run.name, result.lead_hours, result.scores, result.baselines, run.name)
    if forecasts is not None:
        _warn(f"forecasts: {forecasts}")


def print_file_scores(
    file: Path, store: Path, targets: tuple[str, ...], train_years: tuple[int, int] | None, skip_nan: bool
) -> None:
    """Scores a file of forecasts and prints a table for each lead."""
    with ProgressBar() as bar:
        notices, results = score_file(
            file,
            WeatherStore.open(store),
            targets,
            train_years,
            skips_nan=skip_nan,
            progress=lambda text, done, total: bar.show(done, total, text),
        )
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
    """Prints all scores of some forecasts in one column, beside those of baselines on the same forecasts.

    Args:
        title: Title of the table.
        name: Name of the forecasts.
        scores: Scores of the forecasts.
        baselines: Scores of the baselines, by name.
        console: Console to print to; None for standard output.
        legend: Text below the table.
    """
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
    """Prints the RMSE of some forecasts above the published ones for the same lead.

    Args:
        name: Name of the forecasts.
        lead_hours: Lead of the forecasts.
        scores: Scores of the forecasts.
        baselines: Scores of the baselines on the same forecasts, by name.
        recipe: Recipe of the forecasts; its row of the paper is marked.
        console: Console to print to; None for standard output.
    """
    console = console or Console(highlight=False)
    channels = [
        channel
        for channel in _PUBLISHED_CHANNELS
        if f"rmse_{channel}" in scores and any((channel, lead_hours) in row.rmse for row in PUBLISHED)
    ]
    if not channels:
        scored = ", ".join(name.removeprefix("rmse_") for name in scores if name.startswith("rmse_"))
        leads = " and ".join(f"{lead} h" for lead in LEADS_OF_TABLES)
        console.print(
            f"nothing was published for {scored} at {lead_hours} h; the tables have {', '.join(_PUBLISHED_CHANNELS)} "
            f"at {leads}",
            soft_wrap=True,
        )
        return
    table = Table(title=f"RMSE at {lead_hours} h; published rows: {PUBLISHED_DATA}", title_justify="left")
    for header in ("model", "source"):
        table.add_column(header)
    for channel in channels:
        table.add_column(_label(channel), justify="right")
    for label, row in ((name, scores), *baselines.items()):
        cells = [row.get(f"rmse_{channel}") for channel in channels]
        table.add_row(label, "here", *("" if cell is None else format_score(cell) for cell in cells))
    source = ""
    for published in PUBLISHED:
        if published.source != source:
            table.add_section()
            source = published.source
        cells = []
        for channel in channels:
            key = (channel, lead_hours)
            decimals = 0 if channel == "z_500" else 2
            spread = f" ± {published.spread[key]:g}" if key in published.spread else ""
            cells.append(f"{published.rmse[key]:.{decimals}f}{spread}" if key in published.rmse else "")
        is_same = recipe is not None and published.recipe == recipe.removesuffix("-rasp")
        label = f"{published.model} (this recipe)" if is_same else published.model
        table.add_row(label, published.source, *cells, style="bold" if is_same else None)
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


def _label(channel: str) -> str:
    return f"{channel.replace('_', '').upper()}, {_units(channel)}"


def _units(channel: str) -> str:
    return VARIABLES[parse_channel(channel).variable].units


def store_references(
    tables: Iterable[ResultTable], scale: Scale, data: Path, store: RunStore, notify: Callable[[str], None]
) -> None:
    """Scores the references of the tables on the test forecasts of their rows, unless the scores are stored.

    Args:
        tables: Tables, in each of which all rows have the same lead and years.
        scale: Scale of the data.
        data: Folder of the weather store.
        store: Store of the scores.
        notify: Receives progress messages.
    """
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
        for reference, scores in _score(recipe, samples, names).items():
            store.write_reference(reference, {"label": names[reference].capitalize(), "test": scores})


def _score(recipe: WeatherRecipe, samples: WeatherSamples, names: dict[str, str]) -> dict[str, dict[str, float]]:
    init_times = np.array([samples.init_time(index) for index in range(len(samples))])
    climatology = Truth(samples.store, samples.targets).mean(samples.years)
    baselines = Baselines(samples.store, samples.targets, recipe.data.train_years)
    scores = score_baselines(baselines, init_times, recipe.data.lead_hours, climatology)
    return {reference: scores[name] for reference, name in names.items()}
