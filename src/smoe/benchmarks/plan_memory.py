"""The memory that `smoe plan` predicts beside the memory that training steps take."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from smoe.benchmarks.stored_table import circumstances, origin, write_table
from smoe.command_line import parse
from smoe.experiments.memory_prediction import predict_memory
from smoe.experiments.recipe import Recipe
from smoe.experiments.registry import experiment_of, find_recipe
from smoe.training.live_memory import available_bytes, peak_bytes

CASES = (
    "heat/smoe",
    "heat/conv",
    "heat/vit",
    "mnist/smoe",
    "mnist/lrlcn",
    "cifar10/conv",
    "ens10/smoe --training.batch-size 1",
    "ens10/unet --training.batch-size 1",
    "weather/smoe --training.batch-size 8",
    "weather/rt --training.batch-size 8",
    "weather/smoe",
)
COLUMNS = ("recipe", "predicted MB", "measured MB", "predicted / measured")


@dataclass(frozen=True)
class PlanMemoryOptions:
    """Compares predictions with measured peaks, and stores a table.

    Attributes:
        cases: Recipes, each with its flags, in quotation marks; the usual list if none is given.
        output: Markdown file of the table; a .jsonl beside it holds the rows.
        only: Measures one case in this process and prints the peak; the command itself uses it.
    """

    cases: tyro.conf.Positional[tuple[str, ...]] = ()
    output: Path = Path("results/bench/plan_memory.md")
    only: str | None = None


def recipe_of(case: str) -> Recipe:
    """The recipe that a case names."""
    name, *flags = case.split()
    recipe = find_recipe(name)
    return parse(type(recipe), flags, prog=f"smoe plan {name}", default=recipe)


def measure(recipe: Recipe) -> float:
    """Peak of the resident memory of this process in two training steps on random data, as `smoe train` makes them."""
    import torch

    from smoe.experiments.dry_training import DryTraining
    from smoe.training.freed_memory import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(1)
    training = DryTraining(experiment_of(recipe).build_dry(recipe), recipe.training)
    training.model.train()
    part_size = recipe.training.part_size or recipe.training.batch_size
    for _ in range(2):
        for _ in range(-(-recipe.training.batch_size // part_size)):
            training.compute_gradients(*training.batch(part_size))
        training.update()
    return peak_bytes()


def compare(case: str) -> dict[str, Any]:
    """A row of the table; a case that does not fit is not measured."""
    predicted, available = predict_memory(recipe_of(case)).memory, available_bytes()
    row = {"recipe": case, "predicted MB": f"{predicted.total / 1e6:.0f}", "predicted / measured": "-"}
    if available is not None and predicted.total > available:
        measured = f"not measured: {available / 1e9:.1f} GB are available"
        return {**row, "measured MB": measured, **circumstances()}
    command = [sys.executable, "-m", "smoe", "bench", "plan-memory", "--only", case]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        return {**row, "measured MB": f"failed: exit code {result.returncode}", **circumstances()}
    peak = json.loads(result.stdout)
    ratio = f"{predicted.total / peak:.2f}"
    return {**row, "measured MB": f"{peak / 1e6:.0f}", "predicted / measured": ratio, **circumstances()}


def main(args: list[str] | None = None) -> None:
    """Compares each case, and stores the table after each."""
    options = parse(PlanMemoryOptions, args or [], prog="smoe bench plan-memory")
    if options.only is not None:
        sys.stdout.write(json.dumps(measure(recipe_of(options.only))))
        return
    rows: list[dict[str, Any]] = []
    text = ""
    for case in options.cases or CASES:
        rows.append(compare(case))
        notes = (
            "Largest resident memory of a process that trains two steps on random data of the recipe's shapes, one "
            "thread, freed memory kept as `smoe train` does; interpreter and libraries are included. The prediction is "
            f"made from shapes before anything is allocated. {origin(rows[-1])}"
        )
        title = "Memory of training, predicted and measured"
        text = write_table(options.output, title, "smoe bench plan-memory", COLUMNS, rows, notes)
    sys.stdout.write(text)
