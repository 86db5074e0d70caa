"""`smoe evaluate`: scores a trained run, or a file of forecasts."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from smoe.cli.main import UsageError
from smoe.cli.parse import parse

if TYPE_CHECKING:
    from smoe.experiments.runs import OpenRun


@dataclass(frozen=True)
class TruthOptions:
    """What a file of forecasts is compared with.

    Attributes:
        store: folder that `smoe data prepare weather` made, with the fields that came true.
        targets: channels to score, of those in the file.
        train_years: first and last year of the climatologies; those of the store's statistics if not given.
    """

    store: Path | None = None
    targets: tuple[str, ...] = ("z_500", "t_850", "t2m", "tp")
    train_years: tuple[int, int] | None = None


@dataclass(frozen=True)
class Evaluate:
    """Scores a trained run, or any forecasts in WeatherBench's layout (init_time, lead_time, lat, lon).

    smoe evaluate runs/first --split validation

    smoe evaluate runs/weather --forecasts forecasts.nc

    smoe evaluate --file forecasts.nc --data.store weather-store

    smoe evaluate --ensemble stores/t850-10 --years 2016 2017

    Attributes:
        run: run directory.
        split: data to score on.
        checkpoint: the best weights by the validation split, or the last ones.
        forecasts: of a weather run: write its forecasts to this file, .nc or .zarr.
        file: instead of a run: forecasts to score, NetCDF or Zarr, of any model.
        ensemble: instead of a run: folder that `smoe data prepare ens10` made, whose ensemble is scored as it is.
        years: of an ensemble: first and last, by the dates that forecasts are for; those after training if not given.
        skip_nan: of a file: leave out forecasts with NaN instead of refusing the file.
        data: of a file: what it is compared with.
    """

    run: tyro.conf.Positional[Path | None] = None
    split: Literal["test", "validation", "train"] = "test"
    checkpoint: Literal["best", "last"] = "best"
    forecasts: Path | None = None
    file: Path | None = None
    ensemble: Path | None = None
    years: tuple[int, int] | None = None
    skip_nan: bool = False
    data: TruthOptions = field(default_factory=TruthOptions)


def run(args: list[str]) -> int:
    """Parses, evaluates, and prints a table."""
    options = parse(Evaluate, args, prog="smoe evaluate")
    if sum(each is not None for each in (options.run, options.file, options.ensemble)) != 1:
        raise UsageError("give either a run directory, --file FORECASTS or --ensemble STORE (see smoe evaluate --help)")
    if options.years is not None and options.ensemble is None:
        raise UsageError("--years belongs to --ensemble; a run has its own years")
    if options.ensemble is not None:
        _score_ensemble(options, options.ensemble)
        return 0
    if options.file is not None:
        _score_file(options, options.file)
        return 0
    assert options.run is not None
    if options.data != TruthOptions() or options.skip_nan:
        raise UsageError("--data and --skip-nan belong to --file; a run has its own data")
    if options.forecasts is not None:
        from smoe.paper.weather.data.write_forecasts import check_output

        # Before a checkpoint is loaded and a year of forecasts is made.
        check_output(options.forecasts)

    from smoe.cli.report import print_result
    from smoe.experiments.runs import open_run
    from smoe.paper.ens10.recipes import EnsembleRecipe
    from smoe.paper.weather.recipes import WeatherRecipe

    opened = open_run(options.run, options.checkpoint, (options.split,), say=_say)
    if isinstance(opened.recipe, WeatherRecipe):
        _evaluate_weather(opened, options)
        return 0
    if options.forecasts is not None:
        raise UsageError(f"--forecasts is for weather runs; {options.run} is a run of {opened.name}")
    if isinstance(opened.recipe, EnsembleRecipe):
        _evaluate_ensemble(opened, options)
        return 0
    values = opened.evaluate(options.split)
    print_result(opened.name, options.split, values, options.run)
    return 0


def _evaluate_weather(opened: OpenRun, options: Evaluate) -> None:
    from smoe.cli.score_progress import ScoreProgress
    from smoe.cli.weather_report import print_published, print_scores
    from smoe.paper.weather.evaluate import evaluate_run

    with ScoreProgress() as progress:
        result = evaluate_run(opened, options.split, options.forecasts, progress)
    first, last = result.years
    broken = [name for name, value in result.scores.items() if not math.isfinite(value)]
    if broken:
        _say(f"the forecasts of {options.run} hold NaN or infinite values: {', '.join(broken)} cannot be computed")
    print_scores(
        f"{opened.name}, {options.split} split ({first}-{last}): {result.num_forecasts} forecasts of "
        f"{result.lead_hours} h",
        opened.name,
        result.scores,
        result.baselines,
    )
    print_published(opened.name, result.lead_hours, result.scores, result.baselines, opened.name)
    if options.forecasts is not None:
        _say(f"forecasts: {options.forecasts}")


def _evaluate_ensemble(opened: OpenRun, options: Evaluate) -> None:
    from smoe.cli.ensemble_report import print_ensemble_scores
    from smoe.paper.ens10.raw import score_raw_ensemble
    from smoe.paper.ens10.recipes import EnsembleRecipe
    from smoe.paper.ens10.setting import open_store

    assert isinstance(opened.recipe, EnsembleRecipe)
    data = opened.recipe.data
    years = {"train": data.train_years, "validation": data.validation_years, "test": data.test_years}[options.split]
    store = open_store(data)
    title = (
        f"{opened.name}, {options.split} split ({years[0]}-{years[1]}): {store.task} from {store.num_members} members"
    )
    scores = opened.evaluate(options.split)
    print_ensemble_scores(title, store, score_raw_ensemble(store, years), opened.name, scores)


def _score_ensemble(options: Evaluate, path: Path) -> None:
    if options.forecasts is not None or options.skip_nan or options.data != TruthOptions():
        raise UsageError("--forecasts, --skip-nan and --data are for runs and files; an --ensemble has --years only")

    from smoe.cli.ensemble_report import print_ensemble_scores
    from smoe.paper.ens10.data.store import EnsembleStore
    from smoe.paper.ens10.raw import score_raw_ensemble

    store = EnsembleStore.open(path)
    after = store.train_years[1] + 1
    years = options.years or (after, max(after, store.years()[-1]))
    title = f"{path.name}, {years[0]}-{years[1]}: {store.task} from {store.num_members} members"
    print_ensemble_scores(title, store, score_raw_ensemble(store, years))


def _score_file(options: Evaluate, file: Path) -> None:
    if options.data.store is None:
        raise UsageError("--file needs --data.store FOLDER, the weather store to compare the forecasts with")
    if options.forecasts is not None:
        raise UsageError("--forecasts writes those of a run; --file reads some")

    from smoe.cli.score_progress import ScoreProgress
    from smoe.cli.weather_report import print_published, print_scores
    from smoe.paper.weather.data.store import WeatherStore
    from smoe.paper.weather.score_files import score_file

    store, asked = WeatherStore.open(options.data.store), options.data
    with ScoreProgress() as progress:
        notices, results = score_file(
            file, store, asked.targets, asked.train_years, skips_nan=options.skip_nan, progress=progress
        )
    for notice in notices:
        _say(f"{file.name}: {notice}")
    for result in results:
        for notice in result.notices:
            _say(f"{file.name}, {result.lead_hours} h: {notice}")
        title = f"{file.name}: {result.num_forecasts} forecasts of {result.lead_hours} h"
        print_scores(title, file.name, result.scores, result.baselines)
        print_published(file.name, result.lead_hours, result.scores, result.baselines)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
