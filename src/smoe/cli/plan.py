"""`smoe plan`: prints what training a recipe would cost here, before it is trained."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from smoe.cli.recipe_flags import parse_recipe
from smoe.command_line import UsageError
from smoe.experiments.recipe import Recipe
from smoe.experiments.registry import all_recipes, find_recipe

if TYPE_CHECKING:
    from smoe.experiments.cost import Cost
    from smoe.experiments.dry_task import DryTask

HELP = """usage: smoe plan RECIPE [--FIELD VALUE ...]

Prints what training a recipe needs: parameters, memory, seconds per step and per epoch on this machine. A few real
steps are made on random data of the true shape; no data set is needed. Every field of the recipe is a flag, as for
`smoe train`.

recipes: {recipes}

examples:
  smoe plan weather/smoe
  smoe plan weather/smoe --model.filters 16 --model.num-blocks 3 --training.num-threads 1
  smoe plan heat/smoe --training.batch-size 128
"""


def run(args: list[str]) -> int:
    """Parses, measures, and prints a line for each thing."""
    if args and args[0] in ("-h", "--help"):
        sys.stdout.write(HELP.format(recipes=", ".join(all_recipes())))
        return 0
    if not args or args[0].startswith("-"):
        raise UsageError(f"name a recipe first: smoe plan {next(iter(all_recipes()))} (see smoe plan --help)")
    name = args[0]
    recipe = parse_recipe(find_recipe(name), args[1:], prog=f"smoe plan {name}", is_run=False).recipe

    # torch is imported from here on only: a typo is answered at once.
    from smoe.experiments.cost import measure_cost
    from smoe.experiments.runs import set_num_threads

    set_num_threads(recipe)
    for line in describe(name, recipe, measure_cost(recipe)):
        sys.stdout.write(f"{line}\n")
    return 0


def describe(name: str, recipe: Recipe, cost: Cost) -> list[str]:
    """The lines that a person reads."""
    import torch

    from smoe.training.run_directory import processor_name

    dry, parts, plan = cost.dry_task, cost.parameters, recipe.training
    num_steps = dry.num_train_samples // plan.batch_size
    of_parts = ", ".join(
        f"{text} {number:,}"
        for text, number in (("experts", parts.experts), ("gates", parts.gates), ("rest", parts.rest))
    )
    scaled = "" if cost.measured_batch_size == plan.batch_size else f"batches of {cost.measured_batch_size}, "
    num_threads = torch.get_num_threads()
    where = f"{scaled}{num_threads} {'thread' if num_threads == 1 else 'threads'} of {processor_name()}"
    held = f"a batch of {plan.batch_size}" if plan.part_size is None else f"a part of {plan.part_size}"
    rows = {
        "data": f"{dry.source}; a sample is {_shape(dry.input_shape)} to {_target(dry)}",
        "parameters": f"{parts.total:,}: {of_parts}",
        "memory": (
            f"{size(cost.total_bytes)}: weights {size(cost.weight_bytes)}, gradients {size(cost.gradient_bytes)}, "
            f"optimiser {size(cost.optimizer_bytes)}, activations {size(cost.activation_bytes)} of {held}; "
            "working space of single operations comes on top"
        ),
        "a step": f"{duration(cost.step_seconds)} for a batch of {plan.batch_size} (measured with {where})",
        "an epoch": (
            f"{duration(num_steps * cost.step_seconds + cost.validation_seconds)}: {num_steps:,} steps of "
            f"{dry.num_train_samples:,} samples, and {duration(cost.validation_seconds)} to validate "
            f"{dry.num_validation_samples:,}"
        ),
        "the run": f"at most {plan.max_epochs} epochs, it ends {plan.early_stop_patience} after the best one",
    }
    return [name, *(f"  {title:<12}{text}" for title, text in rows.items())]


def size(num_bytes: int) -> str:
    """Bytes in a unit that leaves few digits."""
    value, unit = float(num_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000.0:
            break
        value, unit = value / 1000.0, larger
    return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"


def duration(seconds: float) -> str:
    """A time in a unit that leaves few digits."""
    for limit, factor, unit in (
        (0.1, 1e3, "ms"),
        (120.0, 1.0, "s"),
        (7200.0, 1 / 60, "min"),
        (172800.0, 1 / 3600, "h"),
    ):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds / 86400:.3g} days"


def _target(dry: DryTask) -> str:
    return _shape(dry.target_shape) if dry.num_classes is None else f"one of {dry.num_classes} classes"


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
