"""Times a training step of heat/smoe, native and dense, beside the same step of a plain convolution, by turns.

Run: smoe bench heat-step [--steps 600]. Prints the table and stores it in paper/results/bench.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from rich.progress import track

from smoe.nn import GridConv2d, track_loss_scale
from smoe.ops._operators import BACKEND_VARIABLE, native_library
from smoe.rules import EndToEnd
from smoe.training.task import Task
from smoe_paper.benchmarks.timing import circumstances, write_table
from smoe_paper.heat.model import build_task
from smoe_paper.heat.recipes import HEAT_RECIPES

_STEPS_IN_A_ROW = 20
_UNIT = "convolution, 1 filter"


def training_step(task: Task, model: torch.nn.Module, batch_size: int) -> Callable[[], None]:
    """The work of one step of the loop: fetch a batch, forward, loss, backward, Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    samples = task.splits["train"]
    indices = torch.randint(len(samples), (batch_size,)).tolist()  # type: ignore[arg-type]

    def step() -> None:
        input, target = samples.__getitems__(indices)  # type: ignore[attr-defined]
        loss = task.loss(model(input), target)
        if task.auxiliary_loss is not None:
            loss = loss + task.auxiliary_loss(model)
        track_loss_scale(loss, model).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def use_backend(name: str) -> None:
    """Turns the native kernels on or off."""
    os.environ[BACKEND_VARIABLE] = name
    native_library.cache_clear()


def measure(steps: Mapping[str, Callable[[], None]], num_steps: int, description: str) -> dict[str, list[float]]:
    """Milliseconds of each kind's steps, by turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in track(range(max(num_steps // _STEPS_IN_A_ROW, 1)), description=description):
        for name, step in steps.items():
            # In a training, a step follows one of the same kind: the first ones here are not counted.
            for number in range(_STEPS_IN_A_ROW + 3):
                started = time.perf_counter()
                step()
                if number >= 3:
                    times[name].append(1000 * (time.perf_counter() - started))
    return times


def main(args: list[str] | None = None) -> None:
    """Measures and stores."""
    parser = argparse.ArgumentParser("smoe bench heat-step", description=__doc__)
    parser.add_argument("--steps", type=int, default=600, help="steps of each kind; medians are reported")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args(args)
    torch.set_num_threads(arguments.threads)

    recipe = HEAT_RECIPES["heat/smoe"]
    small = replace(recipe, data=replace(recipe.data, num_train_runs=20))
    plain = replace(small, rule=EndToEnd())
    batch_size = recipe.training.batch_size

    def quietly(_: str) -> None:
        pass

    task = build_task(small, ("train",), quietly)
    untrained_gate = build_task(plain, (), quietly).model
    dense_model, dense_untrained = (build_task(choice, (), quietly).model for choice in (small, plain))
    # The dense backend's large tensors disturb the allocator for whatever runs after it: the native kinds are measured
    # first, and each group has a convolution of its own beside it.
    groups = {
        "native": {
            _UNIT: GridConv2d(1, 1, 3),
            "SMoE (1 of 3 experts), RC loss and damping": task.model,
            "SMoE, neither": untrained_gate,
        },
        "dense": {
            _UNIT: GridConv2d(1, 1, 3),
            "SMoE, RC loss and damping, dense backend": dense_model,
            "SMoE, neither, dense backend": dense_untrained,
        },
    }
    rows: list[dict[str, object]] = []
    for backend, models in groups.items():
        use_backend(backend)
        steps = {name: training_step(task, model, batch_size) for name, model in models.items()}
        times = measure(steps, arguments.steps, f"measuring {backend}")
        unit = statistics.median(times[_UNIT])
        rows += [
            {
                "training step": name,
                "median ms": f"{statistics.median(values):.2f}",
                "90th percentile ms": f"{statistics.quantiles(values, n=10)[-1]:.2f}",
                "ratio to convolution": f"{statistics.median(values) / unit:.2f}",
                "threads": arguments.threads,
                **circumstances(),
            }
            for name, values in times.items()
        ]
    columns = ["training step", "median ms", "90th percentile ms", "ratio to convolution", "threads"]
    columns += ["processor", "torch", "commit", "date"]
    print(
        write_table(
            Path("paper/results/bench") / f"heat_step_{arguments.threads}_threads.md",
            "A training step of heat/smoe",
            f"smoe bench heat-step --threads {arguments.threads}",
            columns,
            rows,
            f"Batch {batch_size} of 64 x 64, {arguments.steps} steps of each kind, in one process, by turns of "
            f"{_STEPS_IN_A_ROW}. A step fetches a batch, runs forward, loss and backward, and updates by Adam. The "
            "released implementation takes about 40 ms on one thread of such a machine.",
        )
    )


if __name__ == "__main__":
    main()
