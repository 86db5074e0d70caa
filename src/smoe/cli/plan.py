"""`smoe plan`: prints what training a recipe would cost here, before it is trained."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from smoe.cli.recipe_flags import parse_recipe
from smoe.command_line import UsageError
from smoe.experiments.recipe import Recipe
from smoe.experiments.registry import all_recipes, find_recipe

if TYPE_CHECKING:
    from smoe.experiments.cost import Cost
    from smoe.experiments.dry_task import DryTask
    from smoe.experiments.memory_prediction import MemoryPrediction

HELP = """usage: smoe plan RECIPE [--grid ROWSxCOLUMNS] [--FIELD VALUE ...]

Prints what training a recipe needs: parameters, memory, seconds per step and per epoch on this machine. The memory is
predicted from shapes, for every kind of gate that the recipe can have, before anything is allocated. If it fits, a few
real steps are made on random data of the true shape; no data set is needed. Every field of the recipe is a flag, as
for `smoe train`. --grid is for weather and ENS-10 data that do not exist yet.

recipes: {recipes}

examples:
  smoe plan weather/smoe
  smoe plan weather/smoe --model.filters 16 --model.num-blocks 3 --training.num-threads 1
  smoe plan heat/smoe --training.batch-size 128
  smoe plan weather/smoe --grid 721x1440 --training.batch-size 1
"""


def run(args: list[str]) -> int:
    """Parses, measures, and prints a line for each thing."""
    if args and args[0] in ("-h", "--help"):
        sys.stdout.write(HELP.format(recipes=", ".join(all_recipes())))
        return 0
    if not args or args[0].startswith("-"):
        raise UsageError(f"name a recipe first: smoe plan {next(iter(all_recipes()))} (see smoe plan --help)")
    name = args[0]
    grid, flags = _take_grid(args[1:])
    recipe = parse_recipe(find_recipe(name), flags, prog=f"smoe plan {name}", is_run=False).recipe

    # torch is imported from here on only: a typo is answered at once.
    from smoe.experiments.cost import estimate_cost
    from smoe.experiments.gate_choices import predict_gates
    from smoe.experiments.runs import set_num_threads

    set_num_threads(recipe)
    gates = predict_gates(recipe, grid)
    for line in describe(name, recipe, estimate_cost(recipe, grid), gates):
        sys.stdout.write(f"{line}\n")
    return 0


def _take_grid(args: list[str]) -> tuple[tuple[int, int] | None, list[str]]:
    """Rows and columns of --grid, and the other flags."""
    for place, arg in enumerate(args):
        name, _, value = arg.partition("=")
        if name != "--grid":
            continue
        rest = args[place + 1 :]
        if not value and rest:
            value, rest = rest[0], rest[1:]
        rows, _, columns = value.partition("x")
        if not (rows.isdecimal() and columns.isdecimal() and int(rows) > 0 and int(columns) > 0):
            raise UsageError(f"--grid needs rows and columns, such as 721x1440, got {value!r}")
        return (int(rows), int(columns)), args[:place] + rest
    return None, args


def describe(name: str, recipe: Recipe, cost: Cost, gates: Mapping[str, MemoryPrediction]) -> list[str]:
    """The lines that a person reads.

    Args:
        name: Name of the recipe.
        recipe: Recipe.
        cost: Its cost.
        gates: Memory with each kind of gate that it could have.
    """
    dry, parts, plan = cost.dry_task, cost.parameters, recipe.training
    num_steps = dry.num_train_samples // plan.batch_size
    of_parts = ", ".join(
        f"{text} {number:,}"
        for text, number in (("experts", parts.experts), ("gates", parts.gates), ("rest", parts.rest))
    )
    rows = {
        "data": f"{dry.source}; a sample is {_shape(dry.input_shape)} to {_target(dry)}",
        "parameters": f"{parts.total:,}: {of_parts}",
        "memory": _describe_memory(recipe, cost),
    }
    if len(gates) > 1:
        rows["gates"] = "; ".join(
            f"{kind}: {size(memory.total)}, {'fits' if _fits(memory, cost) else 'does not fit'}"
            for kind, memory in gates.items()
        )
    if cost.times is None:
        rows["a step"] = "not measured: its memory is not available here"
    else:
        rows["a step"] = f"{duration(cost.times.step)} for a batch of {plan.batch_size} {_measured_with(recipe, cost)}"
        rows["an epoch"] = (
            f"{duration(num_steps * cost.times.step + cost.times.validation)}: {num_steps:,} steps of "
            f"{dry.num_train_samples:,} samples, and {duration(cost.times.validation)} to validate "
            f"{dry.num_validation_samples:,}"
        )
    rows["the run"] = f"at most {plan.max_epochs} epochs, it ends {plan.early_stop_patience} after the best one"
    return [name, *(f"  {title:<12}{text}" for title, text in rows.items())]


def _describe_memory(recipe: Recipe, cost: Cost) -> str:
    memory, plan = cost.memory, recipe.training
    if memory is None:
        return "not predicted: the network depends on values of its data, not only on shapes"
    held = f"a batch of {plan.batch_size}" if plan.part_size is None else f"a part of {plan.part_size}"
    left = "" if cost.available is None else f", {size(cost.available)} are available"
    return (
        f"{size(memory.total)}{left}: weights {size(memory.weights)}, gradients {size(memory.gradients)}, optimiser "
        f"{size(memory.optimizer)}, activations {size(memory.activations)} of {held}, kernels {size(memory.kernels)}, "
        f"process {size(memory.process)}; data held in memory come on top"
    )


def _fits(memory: MemoryPrediction, cost: Cost) -> bool:
    from smoe.experiments.cost import fits

    return fits(memory, cost.available)


def _measured_with(recipe: Recipe, cost: Cost) -> str:
    import torch

    from smoe.training.run_directory import processor_name

    assert cost.times is not None
    measured = cost.times.batch_size
    scaled = "" if measured == recipe.training.batch_size else f"batches of {measured}, "
    num_threads = torch.get_num_threads()
    return f"(measured with {scaled}{num_threads} {'thread' if num_threads == 1 else 'threads'} of {processor_name()})"


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
