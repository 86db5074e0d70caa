"""`smoe train`: trains a recipe. The fields of a recipe are the flags."""

from __future__ import annotations

import itertools
import os
import sys
import textwrap
from contextlib import ExitStack
from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from smoe.command_line import UsageError, parse
from smoe.training.plan import Tracker
from smoe_paper.experiments.experiment import all_recipes, experiment_of, find_recipe, print_result
from smoe_paper.experiments.recipe import Recipe

HELP = """usage: smoe train RECIPE [--output-dir DIR] [--resume] [--FIELD VALUE ...]
       smoe train path/to/recipe.py [--FIELD VALUE ...]
       smoe train --resume RUN [--training.max-epochs N] [--FIELD VALUE ...]

Trains a recipe. Every field of the recipe is a flag: `smoe train RECIPE --help` lists them.
Without --output-dir, the run directory is runs/RECIPE-SEED.
The run directory holds the recipe, versions, metrics.jsonl (a line per epoch) and checkpoints.
Runs are resumable: Ctrl-C saves a checkpoint, and --resume continues from it exactly. A run knows its recipe, so that
`smoe train --resume RUN` needs no other flag, unless its data lie outside the run and the working directory: name them
again, as by --data.store. With a larger --training.max-epochs a run is extended.

A file of your own defines RECIPE, or a dictionary RECIPES; `smoe train recipe.py:NAME` names one of them.

recipes, by experiment:
{recipes}

examples:
  smoe train heat/smoe --seed 0 --output-dir runs/first
  smoe train --resume runs/first
  smoe train --resume runs/first --training.max-epochs 300
  smoe train heat/smoe --training.log-with tensorboard
  smoe train weather/smoe --data.store stores/era5 --data.lead-hours 120
  smoe train weather/smoe --data.store stores/era5 --init-from runs/pretrained
  smoe train heat/smoe --data.num-train-runs 100 --model.num-experts 6 --rule "rc(error_quantile=0.4)"
"""


def run(args: list[str]) -> int:
    if args and args[0] in ("-h", "--help"):
        groups = itertools.groupby(all_recipes(), lambda name: name.partition("/")[0])
        lines = [
            textwrap.fill(
                " ".join(names),
                100,
                break_on_hyphens=False,
                initial_indent=f"  {group:<15}",
                subsequent_indent=" " * 17,
            )
            for group, names in groups
        ]
        sys.stdout.write(HELP.format(recipes="\n".join(lines)))
        return 0
    if len(args) >= 2 and args[0] == "--resume" and not args[1].startswith("-"):
        return _resume(Path(args[1]), args[2:])
    if not args or args[0].startswith("-"):
        first = next(iter(all_recipes()))
        raise UsageError(f"name a recipe first: smoe train {first} (see smoe train --help)")
    name = args[0]
    default = find_recipe(name)
    options = parse_recipe(default, args[1:], prog=f"smoe train {name}")
    output_dir = options.output_dir or default_output_dir(name, options.recipe)
    return _train(name, options, output_dir)


def _resume(path: Path, args: list[str]) -> int:
    from smoe.training.run_directory import RunDirectory
    from smoe_paper.experiments.runs import CACHE, check_places, outside_places, places_of, read_recipe, replace_places

    directory = RunDirectory(path)
    name, stored = read_recipe(directory)
    outside = outside_places(stored, directory)
    # Places that are not the recipe's to choose have no value: those that have none afterwards were not given.
    options = parse_recipe(replace_places(stored, dict.fromkeys(outside)), args, prog=f"smoe train --resume {path}")
    not_given = {place: at for place, at in outside.items() if places_of(options.recipe)[place] is None}
    if not_given.pop(CACHE, None) is not None:
        sys.stderr.write(
            f"simulated data are not kept in {str(outside[CACHE])!r}, which is outside the run and the working "
            "directory; give --data.cache-dir to keep them there\n"
        )
    if "init_from" in not_given and directory.last_checkpoint.exists():
        # The weights to start from are not opened again.
        options = replace(options, recipe=replace_places(options.recipe, {"init_from": not_given.pop("init_from")}))
    check_places(directory, not_given)
    return _train(name, replace(options, resume=True), path)


def _train(name: str, options: RecipeFlags, output_dir: Path) -> int:
    # torch is imported from here on only: a typo is answered at once.
    from smoe.training import Interrupted
    from smoe.training.distribution import leave_processes
    from smoe.training.progress import BarReporter, Reporter, TrackedReporter
    from smoe_paper.experiments.runs import train

    # Launchers number the processes of a run in RANK; the first one prints for all.
    is_first = os.environ.get("RANK", "0") == "0"
    recipe, log_with = options.recipe, options.log_with
    reporter = BarReporter(recipe.training.monitor, is_quiet=not is_first)
    try:
        with reporter, ExitStack() as closing:
            logged: Reporter = reporter
            if log_with is not None and is_first:
                logged = closing.enter_context(TrackedReporter(reporter, log_with, output_dir, recipe.plain()))
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


def default_output_dir(name: str, recipe: Recipe) -> Path:
    """`runs/heat-smoe-0` for seed 0 of heat/smoe."""
    file = name.partition(":")[0]
    stem = Path(file).stem if file.endswith(".py") else name.replace("/", "-")
    return Path("runs") / f"{stem}-{recipe.seed}"


@dataclass(frozen=True)
class RecipeFlags:
    """What was typed after the name of a recipe.

    Attributes:
        log_with: Package that records the training; None records nothing. It is no field of the recipe: it changes
            nothing of what is computed.
    """

    recipe: Recipe
    output_dir: Path | None = None
    resume: bool = False
    log_with: Tracker | None = None


def parse_recipe(recipe: Recipe, args: list[str], *, prog: str, is_run: bool = True) -> RecipeFlags:
    fields: list[Any] = [("recipe", Annotated[type(recipe), tyro.conf.arg(name=""), tyro.conf.FlagConversionOff])]
    attributes = ["recipe: What to train."]
    if is_run:
        fields += [
            ("output_dir", Path | None, field(default=None)),
            ("resume", Annotated[bool, tyro.conf.FlagCreatePairsOff], field(default=False)),
            ("log_with", Annotated[Tracker | None, tyro.conf.arg(name="training.log-with")], field(default=None)),
        ]
        attributes += [
            "output_dir: Run directory; runs/RECIPE-SEED if not given.",
            "resume: Continue the run in the output directory.",
            "log_with: Record the training with this package too; Weights & Biases and MLflow stay offline unless "
            "their environment variables say otherwise.",
        ]
    # The flags are those of the recipe's own class, which is known only now.
    kind = make_dataclass("Options", fields, frozen=True)
    summary = (type(recipe).__doc__ or "").splitlines()[0]
    kind.__doc__ = f"{summary}\n\nAttributes:\n" + "".join(f"    {line}\n" for line in attributes)
    options: Any = parse(kind, args, prog=prog, default=kind(recipe))
    if not is_run:
        return RecipeFlags(options.recipe)
    return RecipeFlags(options.recipe, options.output_dir, options.resume, options.log_with)
