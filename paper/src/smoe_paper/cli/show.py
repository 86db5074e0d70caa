"""`smoe show`: draws what a run learned."""

from __future__ import annotations

import sys
from pathlib import Path

from smoe.command_line import UsageError
from smoe_paper.cli.evaluate import parse_with_places
from smoe_paper.experiments.registry import find_experiment

HELP = """usage: smoe show RUN [--checkpoint best|last] [--split test|validation] [--data.PLACE PATH] [...]

Draws what a run learned into RUN/pictures and prints the paths: its scores by epoch, its routing, and what else the
experiment has to show. --data.PLACE names data that were moved, or lie outside the run and the working directory.

examples:
  smoe show runs/first
  smoe show runs/mnist-smoe-0 --split validation
  smoe show runs/weather --init-times 2018-01-15T00 2018-07-15T00
  smoe show runs/weather --layers blocks.0

`smoe show RUN --help` lists every option.
"""


def run(args: list[str]) -> int:
    """Parses, draws, and prints the pictures' paths."""
    if not args or args[0] in ("-h", "--help"):
        sys.stdout.write(HELP)
        return 0 if args else 2
    if args[0].startswith("-"):
        raise UsageError("give a run directory first (see smoe show --help)")
    path = Path(args[0])

    from smoe.cli.fit import run_show
    from smoe.regression._model_files import is_model_folder
    from smoe.training.run_directory import RunDirectory
    from smoe_paper.experiments.places import data_places
    from smoe_paper.experiments.runs import open_run, read_recipe

    if is_model_folder(path):
        return run_show(args)
    _, recipe = read_recipe(RunDirectory(path))
    experiment = find_experiment(recipe.experiment)
    options, data = parse_with_places(experiment.show_options, data_places(recipe), args[1:], f"smoe show {path}")
    splits = (options.split,) if experiment.draws_splits else ()
    opened = open_run(path, options.checkpoint, splits, _notify, data)
    for picture in experiment.draw(opened, options):
        sys.stdout.write(f"{picture}\n")
    return 0


def _notify(text: str) -> None:
    sys.stderr.write(f"{text}\n")
