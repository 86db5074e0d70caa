"""`smoe evaluate`: scores a trained run, or forecasts of other origin."""

from __future__ import annotations

import sys
from dataclasses import field, make_dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from smoe.command_line import UsageError, parse
from smoe_paper.experiments.experiment import Experiment
from smoe_paper.experiments.registry import EXPERIMENTS, all_experiments, find_experiment

HELP = """usage: smoe evaluate RUN [--split test|validation|train] [--checkpoint best|last] [--data.PLACE PATH] [...]
       smoe evaluate EXPERIMENT [...]

Scores a trained run, wherever its directory was moved; --data.store, --data.root or --data.cache-dir names the data
where these were moved, or lie outside the run and the working directory. With the name of an experiment, scores
forecasts of other origin: {scored}.

examples:
  smoe evaluate runs/first
  smoe evaluate runs/first --split validation
  smoe evaluate /elsewhere/run --data.store stores/era5
  smoe evaluate runs/weather --forecasts forecasts.nc
  smoe evaluate weather --file forecasts.nc --data.store stores/era5
  smoe evaluate ens10 --ensemble stores/t850-10 --years 2016 2017

`smoe evaluate RUN --help` and `smoe evaluate EXPERIMENT --help` list every option.
"""


def run(args: list[str]) -> int:
    """Parses, evaluates, and prints a table."""
    if not args or args[0] in ("-h", "--help"):
        scored = ", ".join(experiment.name for experiment in all_experiments() if experiment.score_options is not None)
        sys.stdout.write(HELP.format(scored=scored))
        return 0 if args else 2
    if args[0].startswith("-"):
        raise UsageError("give a run directory or an experiment first (see smoe evaluate --help)")
    if args[0] in EXPERIMENTS and not Path(args[0]).exists():
        return _score(find_experiment(args[0]), args[1:])
    return _evaluate(Path(args[0]), args[1:])


def _score(experiment: Experiment, args: list[str]) -> int:
    if experiment.score_options is None:
        raise UsageError(f"{experiment.name} has no forecasts of other origin to score: give a run directory")
    experiment.score(parse(experiment.score_options, args, prog=f"smoe evaluate {experiment.name}"))
    return 0


def _evaluate(path: Path, args: list[str]) -> int:
    from smoe.training.run_directory import RunDirectory
    from smoe_paper.experiments.places import data_places
    from smoe_paper.experiments.runs import open_run, read_recipe

    _, recipe = read_recipe(RunDirectory(path))
    experiment = find_experiment(recipe.experiment)
    options, data = parse_with_places(experiment.evaluate_options, data_places(recipe), args, f"smoe evaluate {path}")
    experiment.prepare_evaluation(options)
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


def _notify(text: str) -> None:
    sys.stderr.write(f"{text}\n")
