"""`smoe evaluate`, `smoe show` and `smoe report` of trained runs; the last two of fitted models too."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, make_dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from smoe.cli.report import FitPlaces, Report, fit_data, parse_report, write_report
from smoe.command_line import UsageError, parse
from smoe_paper.experiments.experiment import EvaluateOptions, find_experiment

EVALUATE_HELP = """\
usage: smoe evaluate RUN [--split test|validation|train] [--checkpoint best|last] [--data.PLACE PATH] [...]

Scores a trained run, wherever its directory was moved; --data.store, --data.root or --data.cache-dir names the data
where these were moved, or lie outside the run and the working directory.

examples:
  smoe evaluate runs/first
  smoe evaluate runs/first --split validation
  smoe evaluate /elsewhere/run --data.store stores/era5

`smoe evaluate RUN --help` lists every option.
"""


def run_evaluate(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        sys.stdout.write(EVALUATE_HELP)
        return 0 if args else 2
    if args[0].startswith("-"):
        raise UsageError("give a run directory first (see smoe evaluate --help)")
    path = Path(args[0])

    from smoe.training.run_directory import RunDirectory
    from smoe_paper.experiments.runs import data_places, open_run, read_recipe

    _, recipe = read_recipe(RunDirectory(path))
    experiment, prog = find_experiment(recipe.experiment), f"smoe evaluate {path}"
    options, data = parse_with_places(EvaluateOptions, data_places(recipe), args[1:], prog)
    opened = open_run(path, options.checkpoint, (options.split,), _notify, data)
    experiment.evaluate(opened, options)
    return 0


def parse_with_places(kind: type[Any], places: list[str], args: list[str], prog: str) -> tuple[Any, dict[str, Path]]:
    """The options of a command that opens a run, and the places of data that were given as `--data.PLACE PATH`."""
    moved = make_dataclass("Places", [(place, Path | None, field(default=None)) for place in places], frozen=True)
    moved.__doc__ = "Places of the data, where they are not those of the recipe."
    fields: list[Any] = [("options", Annotated[kind, tyro.conf.arg(name="")], field(default_factory=kind))]
    fields.append(("data", moved, field(default_factory=moved)))
    both = make_dataclass("Options", fields, frozen=True)
    both.__doc__ = (kind.__doc__ or "").splitlines()[0]
    parsed: Any = parse(both, args, prog=prog)
    given = {place: getattr(parsed.data, place) for place in places if getattr(parsed.data, place) is not None}
    return parsed.options, given


SHOW_HELP = """usage: smoe show RUN [--checkpoint best|last] [--data.PLACE PATH]

Draws what a run learned into RUN/pictures and prints the paths: its scores by epoch and its routing. --data.PLACE names
data that were moved, or lie outside the run and the working directory. `smoe report RUN` shows more.
"""


@dataclass(frozen=True)
class ShowOptions:
    """Draws what a run learned into RUN/pictures.

    Attributes:
        checkpoint: The best weights by the validation split, or the last ones.
    """

    checkpoint: Literal["best", "last"] = "best"


def run_show(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        sys.stdout.write(SHOW_HELP)
        return 0 if args else 2
    if args[0].startswith("-"):
        raise UsageError("give a run directory first (see smoe show --help)")
    path = Path(args[0])

    from smoe.cli.fit import run_show as show_fit
    from smoe.regression import is_model_folder
    from smoe.training.run_directory import RunDirectory
    from smoe_paper.experiments.runs import data_places, open_run, read_recipe

    if is_model_folder(path):
        return show_fit(args)
    _, recipe = read_recipe(RunDirectory(path))
    experiment = find_experiment(recipe.experiment)
    options, data = parse_with_places(ShowOptions, data_places(recipe), args[1:], f"smoe show {path}")
    for picture in experiment.draw(open_run(path, options.checkpoint, (), _notify, data)):
        sys.stdout.write(f"{picture}\n")
    return 0


@dataclass(frozen=True)
class RunPlaces(FitPlaces):
    """Where data are, if they are not where the runs found them.

    Attributes:
        store: Store of weather or ensemble fields.
        root: Folder of images.
        cache_dir: Folder of simulated data.
        region_map: Map of regions.
        inputs: Inputs of a model that smoe fit made: files, in the order of the fit.
        targets: Targets of such a model.
    """

    store: Path | None = None
    root: Path | None = None
    cache_dir: Path | None = None
    region_map: Path | None = None


@dataclass(frozen=True)
class RunReports(Report):
    """Writes a page about one run or several, as one HTML file that needs no network.

    It shows scores beside those of baselines and of the paper, curves, the routing, expert use, filters, errors, and
    how the run was made.

    smoe report runs/first -o report.html

    smoe report runs/smoe-0 runs/smoe-1 runs/conv-0 -o comparison.html

    smoe report runs/mine --data.inputs inputs.nc --data.targets targets.nc -o mine.html

    Attributes:
        runs: Run directories, and models that smoe fit made.
        output: File to write; report.html in the directory of a single run if not given.
        plain: Run of a plain net, whose errors those of the others are compared with; the first run without experts of
            the same data if not given.
        split: Split whose errors are shown.
        checkpoint: The best weights by the validation split, or the last ones.
        without_data: Read no samples: no error maps, baselines or classes.
        data: Places of data that were moved, or lie outside the run and the working directory.
    """

    split: Literal["test", "validation"] = "test"
    checkpoint: Literal["best", "last"] = "best"
    data: RunPlaces = field(default_factory=RunPlaces)


def run_report(args: list[str]) -> int:
    options = parse_report(RunReports, args)

    from smoe_paper.experiments.read_run import ReadOptions, read_run

    moved = {place: getattr(options.data, place) for place in ("store", "root", "cache_dir", "region_map")}
    reading = ReadOptions(
        split=None if options.without_data else options.split,
        checkpoint=options.checkpoint,
        data={place: value for place, value in moved.items() if value is not None},
    )
    return write_report(options, partial(read_run, options=reading, notify=_notify, fit_data=fit_data(options)))


def _notify(text: str) -> None:
    sys.stderr.write(f"{text}\n")
