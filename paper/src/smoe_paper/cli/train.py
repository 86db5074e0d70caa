"""`smoe train`: trains a recipe. The fields of a recipe are the flags."""

from __future__ import annotations

import itertools
import os
import sys
import textwrap
from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from smoe.command_line import UsageError, parse
from smoe.training.plan import Tracker
from smoe_paper.experiments.experiment import all_recipes, experiment_of, find_recipe, print_result
from smoe_paper.experiments.recipe import Recipe

HELP = """usage: smoe train RECIPE [--output-dir DIR] [--resume] [--FIELD VALUE ...]
       smoe train --resume RUN [--training.max-epochs N] [--FIELD VALUE ...]

Trains a recipe. Every field of the recipe is a flag: `smoe train RECIPE --help` lists them.
The run directory, runs/RECIPE-SEED without --output-dir, holds the recipe, versions, metrics.jsonl (a line per epoch)
and checkpoints. Ctrl-C saves a checkpoint, and --resume continues from it exactly. A run knows its recipe, so that
`smoe train --resume RUN` needs no other flag, unless its data lie outside the run and the working directory: name them
again, as by --data.store. With a larger --training.max-epochs a run is extended.

recipes, by experiment:
{recipes}

examples:
  smoe train heat/smoe --seed 0 --output-dir runs/first
  smoe train --resume runs/first --training.max-epochs 300
  smoe train weather/smoe --data.store stores/era5 --data.lead-hours 120
  smoe train heat/smoe --data.num-train-runs 100 --model.num-experts 6 --rule "rc(error_quantile=0.4)"
"""


def run(args: list[str]) -> int:
    if args and args[0] in ("-h", "--help"):
        groups = itertools.groupby(all_recipes(), lambda name: name.partition("/")[0])
        wrapper = textwrap.TextWrapper(100, break_on_hyphens=False, initial_indent="  ", subsequent_indent=" " * 17)
        lines = [wrapper.fill(f"{group:<15}{' '.join(names)}") for group, names in groups]
        sys.stdout.write(HELP.format(recipes="\n".join(lines)))
        return 0
    if len(args) >= 2 and args[0] == "--resume" and not args[1].startswith("-"):
        return _resume(Path(args[1]), args[2:])
    if not args or args[0].startswith("-"):
        first = next(iter(all_recipes()))
        raise UsageError(f"name a recipe first: smoe train {first} (see smoe train --help)")
    options = parse_recipe(find_recipe(args[0]), args[1:], prog=f"smoe train {args[0]}")
    default = Path("runs") / f"{args[0].replace('/', '-')}-{options.recipe.seed}"
    return _train(args[0], options, options.output_dir or default)


def _resume(path: Path, args: list[str]) -> int:
    from smoe.training.run_directory import RunDirectory
    from smoe_paper.experiments.runs import check_paths, data_paths, outside_paths, read_recipe, with_data

    directory = RunDirectory(path)
    name, stored = read_recipe(directory)
    outside = outside_paths(stored, directory)
    # Paths that are not the recipe's to choose have no value: those that have none afterwards were not given.
    options = parse_recipe(with_data(stored, dict.fromkeys(outside)), args, prog=f"smoe train --resume {path}")
    not_given = {key: at for key, at in outside.items() if data_paths(options.recipe)[key] is None}
    check_paths(directory, not_given)
    return _train(name, replace(options, resume=True), path)


def _train(name: str, options: RecipeFlags, output_dir: Path) -> int:
    # torch is imported from here on only: a typo is answered at once.
    from smoe.training import Interrupted
    from smoe.training.progress import BarReporter, Reporter, TrackedReporter
    from smoe.training.task import leave_processes
    from smoe_paper.experiments.runs import train

    # Launchers number the processes of a run in RANK; the first one prints for all.
    is_first = os.environ.get("RANK", "0") == "0"
    recipe, log_with = options.recipe, options.log_with
    reporter = BarReporter(recipe.training.monitor, is_quiet=not is_first)
    try:
        with reporter:
            logged: Reporter = reporter
            if log_with is not None and is_first:
                logged = TrackedReporter(reporter, log_with, output_dir)
            record = train(
                name,
                recipe,
                output_dir,
                resume=options.resume,
                reporter=logged,
                notify=reporter.notify,
            )
            leave_processes()
    except Interrupted as interruption:
        sys.stderr.write(f"{interruption}; the state is saved, continue with: smoe train --resume {output_dir}\n")
        return 128 + interruption.signal_number
    if not is_first:
        return 0
    test = {key.removeprefix("test/"): value for key, value in record.items() if key.startswith("test/")}
    published = experiment_of(recipe).published(name)
    epochs, seconds = record["epoch"], record["total_seconds"]
    print_result(name, "test", test, output_dir, published, epochs=epochs, seconds=seconds)
    return 0


@dataclass(frozen=True)
class RecipeFlags:
    """What was typed after the name of a recipe; `log_with` changes nothing of what is computed."""

    recipe: Recipe
    output_dir: Path | None = None
    resume: bool = False
    log_with: Tracker | None = None


def parse_recipe(recipe: Recipe, args: list[str], *, prog: str) -> RecipeFlags:
    # The flags are those of the recipe's own class, which is known only now.
    fields: list[Any] = [
        ("recipe", Annotated[type(recipe), tyro.conf.arg(name=""), tyro.conf.FlagConversionOff]),
        ("output_dir", Path | None, field(default=None)),
        ("resume", Annotated[bool, tyro.conf.FlagCreatePairsOff], field(default=False)),
        ("log_with", Annotated[Tracker | None, tyro.conf.arg(name="training.log-with")], field(default=None)),
    ]
    kind = make_dataclass("Options", fields, frozen=True)
    kind.__doc__ = f"""{(type(recipe).__doc__ or "").splitlines()[0]}

Attributes:
    recipe: What to train.
    output_dir: Run directory; runs/RECIPE-SEED if not given.
    resume: Continue the run in the output directory.
    log_with: Record the training for this package too.
"""
    options: Any = parse(kind, args, prog=prog, default=kind(recipe))
    return RecipeFlags(options.recipe, options.output_dir, options.resume, options.log_with)
