"""Times a training step of every model of the heat tables, each by turns with that of the paper's SMoE.

Run: smoe bench heat-models [--seconds 5]. Prints the table and stores it in results/bench.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from rich.progress import track

from smoe.benchmarks.heat_step import training_step
from smoe.benchmarks.stored_table import circumstances, write_table
from smoe.benchmarks.timing import interleaved_medians
from smoe.experiments.result_tables.stored_runs import RunKey
from smoe.paper.heat.build import build_task
from smoe.paper.heat.recipes import HeatDiffusion, HeatRecipe
from smoe.paper.heat.tables import HEAT_TABLES, SMOE
from smoe.training.freed_memory import keep_freed_memory
from smoe.training.task import Task

# In a training, a step follows one of the same kind, whose memory is in the caches.
_STEPS_IN_A_ROW = 5
_PREFIXES = {
    "heat/main": "",
    "heat/gates": "SMoE, gate: ",
    "heat/experts": "SMoE, experts: ",
    "heat/auxiliary": "SMoE; importance, load, agreement, noise: ",
}


def other_models() -> dict[str, HeatRecipe]:
    """The rows of the tables whose steps can differ from that of the paper's SMoE, by name."""
    found: dict[str, HeatRecipe] = {}
    for name, prefix in _PREFIXES.items():
        for table in HEAT_TABLES.select(name):
            for row in table.rows:
                if isinstance(row.recipe, HeatRecipe) and RunKey.of(row.recipe) != RunKey.of(SMOE):
                    found[prefix + row.label] = row.recipe
    return found


def several_steps(task: Task, batch_size: int) -> Callable[[], None]:
    """Some training steps of the task's model, one after the other."""
    step = training_step(task, task.model, batch_size)

    def steps() -> None:
        for _ in range(_STEPS_IN_A_ROW):
            step()

    return steps


def main(args: list[str] | None = None) -> None:
    """Measures and stores."""
    parser = argparse.ArgumentParser("smoe bench heat-models", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each model")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args(args)
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()  # as `smoe train` does
    num_samples = HeatDiffusion().num_train_runs * HeatDiffusion().num_steps
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        data = replace(SMOE.data, num_train_runs=20, cache_dir=Path(folder))
        smoe = build_task(replace(SMOE, data=data))
        for name, recipe in track(other_models().items(), description="measuring"):
            torch.manual_seed(0)
            task = build_task(replace(recipe, data=data))
            batch_size = recipe.training.batch_size
            ways = {"smoe": several_steps(smoe, batch_size), "model": several_steps(task, batch_size)}
            medians = {
                way: seconds / _STEPS_IN_A_ROW
                for way, seconds in interleaved_medians(ways, seconds=arguments.seconds, min_rounds=3).items()
            }
            rows.append(
                {
                    "model": name,
                    "ms": f"{1000 * medians['model']:.1f}",
                    "SMoE, ms": f"{1000 * medians['smoe']:.2f}",
                    "ratio": f"{medians['model'] / medians['smoe']:.1f}",
                    "s per epoch": f"{medians['model'] * (num_samples // batch_size):.0f}",
                    **circumstances(),
                }
            )
    columns = ["model", "ms", "SMoE, ms", "ratio", "s per epoch", "processor", "torch", "commit", "date"]
    print(
        write_table(
            Path("results/bench") / "heat_models.md",
            "A training step of every model of the heat tables",
            f"smoe bench heat-models --seconds {arguments.seconds:g} --threads {arguments.threads}",
            columns,
            rows,
            f"Medians; batch 32 of 64 x 64, {arguments.threads} thread(s), each model by turns with the paper's SMoE "
            f"(1 of 3 experts, RC loss and damping), {_STEPS_IN_A_ROW} steps in a row. An epoch has the paper's "
            f"{num_samples:,} samples.",
        )
    )


if __name__ == "__main__":
    main()
