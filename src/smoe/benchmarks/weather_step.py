"""Times one training step of the full-size weather networks and takes its peak memory, each in a process of its own.

Run: smoe bench weather-step [--batch-size 64] [--steps 2] [--threads 2]. Prints the table and stores it in
results/bench.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.progress import track

from smoe.benchmarks.memory import reset_peak, status
from smoe.benchmarks.separate_process import compared, measure_apart
from smoe.benchmarks.stored_table import circumstances, write_table
from smoe.paper.weather.recipes import WEATHER_RECIPES

_UNIT = "R&T, 128 filters"
# Recipe and backend of each row; RC loss and damping as in the recipe.
KINDS = {
    _UNIT: ("weather/rt", "auto"),
    "SMoE, 128 of 256 experts": ("weather/smoe", "auto"),
    "R&T 2x wide, 256 filters": ("weather/rt-wide", "auto"),
    "SMoE, dense backend": ("weather/smoe", "dense"),
}
_NUMBERS = ("batch_size", "steps", "threads")


def step(kind: str, batch_size: int, num_steps: int, num_threads: int) -> dict[str, float]:
    """Seconds of the quickest step after one to warm up, and megabytes of the peak above what torch takes itself."""
    import torch

    from smoe.nn import track_loss_scale
    from smoe.paper.weather.build import make_task
    from smoe.paper.weather.setting import usual_setting

    torch.set_num_threads(num_threads)
    recipe = WEATHER_RECIPES[KINDS[kind][0]]
    small = replace(recipe, model=replace(recipe.model, filters=4, num_blocks=1))  # type: ignore[call-arg]
    setting = usual_setting(recipe.data)
    shape = setting.shape

    def run(task: Any, input: torch.Tensor, target: torch.Tensor) -> float:
        started = time.perf_counter()
        track_loss_scale(task.loss(task.model(input), target), task.model).backward()
        task.optimizer.step()
        task.optimizer.zero_grad()
        return time.perf_counter() - started

    # Memory that a first step loads does not belong to the network.
    run(make_task(small, setting), torch.randn(1, shape.in_channels, *shape.grid), torch.zeros(1, 3, *shape.grid))
    before = status("VmRSS")
    reset_peak()
    task = make_task(recipe, setting)
    input = torch.randn(batch_size, shape.in_channels, *shape.grid)
    target = torch.randn(batch_size, shape.out_channels, *shape.grid)
    seconds = [run(task, input, target) for _ in range(1 + num_steps)]
    parameters = sum(parameter.numel() for parameter in task.model.parameters())
    return {"seconds": min(seconds[1:]), "peak MB": status("VmHWM") - before, "parameters": parameters}


def main(args: list[str] | None = None) -> None:
    """Measures and stores."""
    parser = argparse.ArgumentParser("smoe bench weather-step", description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=2, help="steps after one to warm up; the quickest counts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dense", action="store_true", help="also the dense backend, which takes long and much memory")
    parser.add_argument("--without-wide", action="store_true", help="leave out the widest net, half of the time")
    parser.add_argument("--output", type=Path, default=Path("results/bench") / "weather_step.md")
    parser.add_argument("--kind", choices=list(KINDS), help=argparse.SUPPRESS)
    arguments = parser.parse_args(args)
    if arguments.kind is not None:
        print(json.dumps(step(arguments.kind, arguments.batch_size, arguments.steps, arguments.threads)))
        return
    kinds = [
        kind
        for kind, (recipe, backend) in KINDS.items()
        if (backend == "auto" or arguments.dense) and not (arguments.without_wide and recipe == "weather/rt-wide")
    ]
    measured = {
        kind: measure_apart(__file__, kind, KINDS[kind][1], arguments, _NUMBERS)
        for kind in track(kinds, description="measuring")
    }
    unit = measured[_UNIT]
    rows = [
        {
            "training step": kind,
            **compared(numbers, unit, "R&T"),
            "threads": arguments.threads,
            **circumstances(),
        }
        for kind, numbers in measured.items()
    ]
    columns = ["training step", "parameters", "seconds", "ratio to R&T", "peak GB", "ratio of peaks", "threads"]
    columns += ["processor", "torch", "commit", "date"]
    flags = f"--batch-size {arguments.batch_size} --steps {arguments.steps} --threads {arguments.threads}"
    flags += " --without-wide" if arguments.without_wide else ""
    print(
        write_table(
            arguments.output,
            "A training step of the full-size weather networks",
            f"smoe bench weather-step {flags}{' --dense' if arguments.dense else ''}",
            columns,
            rows,
            f"Batch {arguments.batch_size} of 117 x 32 x 64, random data, float32: forward, latitude-weighted loss, "
            f"backward, Adam; the quickest of {arguments.steps} steps after one to warm up. SMoE with RC loss and "
            "damping in all 38 layers. The peak is that of the process above what it had before the network was made.",
        )
    )


if __name__ == "__main__":
    main()
