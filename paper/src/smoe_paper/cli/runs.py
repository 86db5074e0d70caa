"""`smoe evaluate` and `smoe report` of trained runs; the last of fitted models too."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, make_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from smoe.cli.report import FitPlaces, Report, fit_data, parse_report, write_report
from smoe.command_line import UsageError, parse
from smoe_paper.experiments.experiment import find_experiment


@dataclass
class EvaluateOptions:
    """Scores a trained run."""

    split: Literal["test", "validation", "train"] = "test"  # Data to score on.
    checkpoint: Literal["best", "last"] = "best"  # The best weights by the validation split, or the last ones.
    json: bool = False  # Print the scores as one line of JSON, for scripts.


def run_evaluate(args: list[str]) -> int:
    """Opens a run with the data that were given as `--data.NAME PATH`, and scores it."""
    if not args or args[0] in ("-h", "--help"):
        sys.stdout.write(
            f"usage: smoe evaluate RUN [--split NAME] [--checkpoint best|last] [--json] [--data.NAME PATH]\n\n"
            f"{EvaluateOptions.__doc__}\n"
            "--data.store or --data.root names data that were moved, or lie outside the run and the working\n"
            "directory. `smoe evaluate RUN --help` lists every option.\n"
        )
        return 0 if args else 2
    if args[0].startswith("-"):
        raise UsageError("give a run directory first (see smoe evaluate --help)")
    path = Path(args[0])

    from smoe.training.run_directory import RunDirectory
    from smoe_paper.experiments.runs import data_paths, open_run, read_recipe

    _, recipe = read_recipe(RunDirectory(path))
    moved = make_dataclass("Data", [(key, Path | None, field(default=None)) for key in data_paths(recipe)])
    moved.__doc__ = "Paths of the data, where they are not those of the recipe."
    kind = make_dataclass("Options", [("data", moved, field(default_factory=moved))], bases=(EvaluateOptions,))
    kind.__doc__ = EvaluateOptions.__doc__
    options: Any = parse(kind, args[1:], prog=f"smoe evaluate {path}")
    data = {key: value for key, value in vars(options.data).items() if value is not None}
    run = open_run(path, options.checkpoint, (options.split,), _notify, data)
    if options.json:
        sys.stdout.write(f"{json.dumps(run.evaluate(options.split))}\n")
    else:
        find_experiment(recipe.experiment).evaluate(run, options.split)
    return 0


@dataclass(frozen=True)
class RunPlaces(FitPlaces):
    """Where data are, if they are not where the runs found them."""

    store: Path | None = None  # Store of weather or ensemble fields.
    root: Path | None = None  # Folder of images.


@dataclass(frozen=True)
class RunReports(Report):
    """Writes a page about one run or several, as one HTML file that needs no network.

    It shows scores beside those of baselines and of the paper, curves, the routing, expert use, filters, errors, and
    how the run was made.

    Commands to copy:
      smoe report runs/first -o report.html
      smoe report runs/smoe-0 runs/smoe-1 runs/conv-0 -o comparison.html
      smoe report runs/mine --data.inputs inputs.nc --data.targets targets.nc -o mine.html

    Attributes:
        runs: Run directories, and models that smoe fit made.
        output: File to write; report.html in the directory of a single run if not given.
        without_data: Read no samples: no error maps, baselines or classes.
    """

    split: Literal["test", "validation"] = "test"  # Split whose errors are shown.
    checkpoint: Literal["best", "last"] = "best"  # The best weights by the validation split, or the last ones.
    # Places of data that were moved, or lie outside the run and the working directory.
    data: RunPlaces = field(default_factory=RunPlaces)


def run_report(args: list[str]) -> int:
    options = parse_report(RunReports, args)

    from smoe_paper.experiments.read_run import ReadOptions, read_run

    moved = {place: getattr(options.data, place) for place in ("store", "root")}
    reading = ReadOptions(
        split=None if options.without_data else options.split,
        checkpoint=options.checkpoint,
        data={place: value for place, value in moved.items() if value is not None},
    )
    return write_report(options, partial(read_run, options=reading, notify=_notify, fit_data=fit_data(options)))


def _notify(text: str) -> None:
    sys.stderr.write(f"{text}\n")
