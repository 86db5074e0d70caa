"""Takes the processor time and page faults of heat's training steps, with freed memory kept and given back.

Run: smoe bench freed-memory [--steps 100]. Prints the table and stores it in results/bench. Each way runs in a separate
process; processor time is measured because it depends little on other work.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from rich.progress import track

from smoe.benchmarks.separate_process import measure_apart
from smoe.benchmarks.stored_table import circumstances, write_table

_RECIPES = ("heat/smoe", "heat/conv", "heat/condconv", "heat/lcn", "heat/lrlcn", "heat/vit", "heat/fc")
_KEPT = "kept"


def measure(recipe_name: str, num_steps: int, *, is_kept: bool) -> dict[str, float]:
    """Milliseconds, page faults and peak of a recipe's steps on one thread."""
    import torch

    from smoe.benchmarks.heat_step import training_step
    from smoe.paper.heat.build import build_task
    from smoe.paper.heat.recipes import HEAT_RECIPES
    from smoe.training.freed_memory import keep_freed_memory

    torch.set_num_threads(1)
    if is_kept and not keep_freed_memory():
        raise SystemExit("the C library has no such setting, or the environment sets it")
    recipe = HEAT_RECIPES[recipe_name]
    with tempfile.TemporaryDirectory() as folder:
        data = replace(recipe.data, num_train_runs=20, cache_dir=Path(folder))
        task = build_task(replace(recipe, data=data), ("train",), notify=lambda _: None)
        step = training_step(task, task.model, recipe.training.batch_size)
        for _ in range(3):
            step()
        started, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF)
        for _ in range(num_steps):
            step()
        ended, after = time.process_time(), resource.getrusage(resource.RUSAGE_SELF)
    return {
        "ms": 1000 * (ended - started) / num_steps,
        "faults": (after.ru_minflt - before.ru_minflt) / num_steps,
        "peak MB": after.ru_maxrss / 1000,
    }


def main(args: list[str] | None = None) -> None:
    """Measures and stores."""
    parser = argparse.ArgumentParser("smoe bench freed-memory", description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--kind", help="for the benchmark itself: a recipe, and whether memory is kept")
    arguments = parser.parse_args(args)
    if arguments.kind:
        recipe, way = arguments.kind.split(", ")
        print(json.dumps(measure(recipe, arguments.steps, is_kept=way == _KEPT)))
        return
    rows: list[dict[str, object]] = []
    for recipe in track(_RECIPES, description="measuring"):
        usual, kept = (
            measure_apart(__file__, f"{recipe}, {way}", "auto", arguments, ["steps"]) for way in ("usual", _KEPT)
        )
        rows.append(
            {
                "recipe": recipe,
                "CPU ms": f"{usual['ms']:.2f}",
                "kept": f"{kept['ms']:.2f}",
                "ratio": f"{kept['ms'] / usual['ms']:.2f}",
                "page faults": f"{usual['faults']:.0f}",
                "kept: faults": f"{kept['faults']:.0f}",
                "peak MB": f"{usual['peak MB']:.0f}",
                "kept: peak": f"{kept['peak MB']:.0f}",
                **circumstances(),
            }
        )
    columns = ["recipe", "CPU ms", "kept", "ratio", "page faults", "kept: faults", "peak MB", "kept: peak"]
    columns += ["processor", "torch", "commit", "date"]
    print(
        write_table(
            Path("results/bench") / "freed_memory.md",
            "Memory that a step frees, kept for the next",
            f"smoe bench freed-memory --steps {arguments.steps}",
            columns,
            rows,
            f"Means of {arguments.steps} training steps of 32 samples on one thread, each way in a process of its own. "
            "`smoe train` and `smoe reproduce` keep it (`smoe.training.freed_memory`), in blocks up to 32 MB: the "
            "64 MB gradient of heat/fc goes back to the system at every step, as before. Where the faults stay (smoe, "
            "lcn, fc), the ratio is chance.",
        )
    )


if __name__ == "__main__":
    main()
