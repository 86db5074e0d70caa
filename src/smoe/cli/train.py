"""`smoe train`: trains a recipe."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from smoe.cli.main import UsageError
from smoe.cli.parse import parse
from smoe.experiments.recipes import RECIPES, Recipe, find_recipe

HELP = f"""usage: smoe train RECIPE [--output-dir DIR] [--resume] [--FIELD VALUE ...]

Trains a recipe. Every field of the recipe is a flag: `smoe train RECIPE --help` lists them.
The run directory holds the recipe, versions, metrics.jsonl (a line per epoch) and checkpoints.
Ctrl-C saves a checkpoint; --resume continues from it as if the run had never stopped.

recipes: {", ".join(RECIPES)}

examples:
  smoe train heat/smoe --seed 0 --output-dir runs/first
  smoe train heat/smoe --output-dir runs/first --resume
  smoe train weather/smoe --data.store stores/era5 --data.lead-hours 120
  smoe train weather/smoe --data.store stores/era5 --init-from runs/pretrained
  smoe train heat/smoe --data.num-train-runs 100 --model.num-experts 6 --routing.damping None
"""


@dataclass(frozen=True)
class Train:
    """Trains a recipe; every field of it can be set.

    Attributes:
        recipe: what to train.
        output_dir: run directory; runs/RECIPE-SEED if not given.
        resume: continue the run in the output directory, as if it had never stopped.
    """

    recipe: Annotated[Recipe, tyro.conf.arg(name=""), tyro.conf.FlagConversionOff]
    output_dir: Path | None = None
    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False


def run(args: list[str]) -> int:
    """Parses, trains, and prints the result beside the paper's."""
    if args and args[0] in ("-h", "--help"):
        sys.stdout.write(HELP)
        return 0
    if not args or args[0].startswith("-"):
        raise UsageError(f"name a recipe first: smoe train {next(iter(RECIPES))} (see smoe train --help)")
    name = args[0]
    recipe = find_recipe(name)
    options = parse(Train, args[1:], prog=f"smoe train {name}", default=Train(recipe))

    # torch is imported from here on only: a typo is answered at once.
    from smoe.cli.report import print_result
    from smoe.experiments.runs import default_output_dir, train
    from smoe.training.devices import leave_processes
    from smoe.training.interruption import Interrupted
    from smoe.training.progress import BarReporter

    output_dir = options.output_dir or default_output_dir(name, options.recipe)
    # Launchers number the processes of a run in RANK; the first one speaks for all.
    is_first = os.environ.get("RANK", "0") == "0"
    reporter = BarReporter(options.recipe.training.monitor, is_quiet=not is_first)
    try:
        with reporter:
            record = train(name, options.recipe, output_dir, resume=options.resume, reporter=reporter, say=reporter.say)
    except Interrupted as interruption:
        sys.stderr.write(f"{interruption}; the state is saved, continue with --output-dir {output_dir} --resume\n")
        return 128 + interruption.signal_number
    leave_processes()
    if not is_first:
        return 0
    test = {key.removeprefix("test/"): value for key, value in record.items() if key.startswith("test/")}
    print_result(name, "test", test, output_dir, epochs=record["epoch"], seconds=record["total_seconds"])
    return 0
