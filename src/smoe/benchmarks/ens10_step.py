"""Times one training step of ENS-10's U-Nets and takes its peak memory, each in a process of its own.

Run: smoe bench ens10-step [--rows 361] [--columns 720] [--batch-size 1] [--steps 2] [--threads 2] [--dense].
Prints the table and stores it in results/bench.
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
from smoe.paper.ens10.recipes import ENSEMBLE_RECIPES

_UNIT = "U-Net"
# Recipe and backend of each row; RC loss and damping as in the recipe.
KINDS = {
    _UNIT: ("ens10/unet", "auto"),
    "SMoE U-Net, 4 experts for each filter": ("ens10/smoe", "auto"),
    "SMoE U-Net, dense backend": ("ens10/smoe", "dense"),
}
_NUMBERS = ("rows", "columns", "batch_size", "steps", "threads")


def step(kind: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Seconds of the quickest step after one to warm up and of its parts, and the peak above what torch takes itself.

    `update` is the optimiser's step, `gate update` that of the gates alone, `routing` the training of the gates inside
    the backward pass: quantile, RC gradient and damping. The last two are of a further step. `CPU seconds` are of all
    threads.
    """
    import torch

    from smoe.nn import SpatialGate, track_loss_scale
    from smoe.paper.ens10.build import make_task
    from smoe.paper.ens10.setting import usual_setting

    torch.set_num_threads(arguments.threads)
    recipe = ENSEMBLE_RECIPES[KINDS[kind][0]]

    def make_batch(size: int, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        truth, mean, spread = torch.randn(3, size, rows, columns)
        return torch.randn(size, 14, rows, columns), torch.stack([truth, mean, spread.exp()], dim=1)

    def pass_through(task: Any, input: torch.Tensor, target: torch.Tensor) -> None:
        track_loss_scale(task.loss(task.model(input), target), task.model).backward()

    def run(task: Any, input: torch.Tensor, target: torch.Tensor) -> tuple[float, float, float]:
        started, of_cpu = time.perf_counter(), time.process_time()
        pass_through(task, input, target)
        between = time.perf_counter()
        task.optimizer.step()
        task.optimizer.zero_grad()
        ended = time.perf_counter()
        return ended - started, ended - between, time.process_time() - of_cpu

    # Memory that a first step loads does not belong to the network.
    small = replace(recipe, model=replace(recipe.model, filters=4))  # type: ignore[call-arg]
    run(make_task(small, usual_setting((8, 8))), *make_batch(1, 8, 8))
    before = status("VmRSS")
    reset_peak()
    task = make_task(recipe, usual_setting((arguments.rows, arguments.columns)))
    input, target = make_batch(arguments.batch_size, arguments.rows, arguments.columns)
    times = [run(task, input, target) for _ in range(1 + arguments.steps)]
    peak = status("VmHWM") - before
    seconds, update, _ = min(times[1:])

    # The profiler comes after the peak, because it uses memory and time.
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        pass_through(task, input, target)
    routing = sum(
        event.cpu_time_total for event in profiler.key_averages() if event.key.endswith("train_routing_backward")
    )
    gates = {
        id(parameter)
        for module in task.model.modules()
        if isinstance(module, SpatialGate)
        for parameter in module.parameters()
    }
    for parameter in task.model.parameters():
        if id(parameter) not in gates:
            # Adam skips parameters without a gradient.
            parameter.grad = None
    started = time.perf_counter()
    task.optimizer.step()
    gate_update = time.perf_counter() - started
    sizes = [(id(parameter) in gates, parameter.numel()) for parameter in task.model.parameters()]
    return {
        "seconds": seconds,
        "CPU seconds": min(of_cpu for _, _, of_cpu in times[1:]),
        "update": update,
        "gate update": gate_update if gates else 0.0,
        "routing": routing / 1e6,
        "peak MB": peak,
        "parameters": sum(size for is_gate, size in sizes if not is_gate),
        "gate parameters": sum(size for is_gate, size in sizes if is_gate),
    }


def main(args: list[str] | None = None) -> None:
    """Measures and stores."""
    parser = argparse.ArgumentParser("smoe bench ens10-step", description=__doc__)
    parser.add_argument("--rows", type=int, default=361)
    parser.add_argument("--columns", type=int, default=720)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2, help="steps after one to warm up; the quickest counts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dense", action="store_true", help="also the dense backend, which takes long and much memory")
    parser.add_argument("--output", type=Path, default=Path("results/bench") / "ens10_step.md")
    parser.add_argument("--kind", choices=list(KINDS), help=argparse.SUPPRESS)
    arguments = parser.parse_args(args)
    if arguments.kind is not None:
        print(json.dumps(step(arguments.kind, arguments)))
        return
    kinds = [kind for kind, (_, backend) in KINDS.items() if backend == "auto" or arguments.dense]
    measured = {
        kind: measure_apart(__file__, kind, KINDS[kind][1], arguments, _NUMBERS)
        for kind in track(kinds, description="measuring")
    }
    unit = measured[_UNIT]
    rows = [
        {
            "training step": kind,
            "in gates": f"{numbers['gate parameters']:,}",
            "gates' update": f"{100 * numbers['gate update'] / numbers['seconds']:.0f} %",
            "RC and damping": f"{100 * numbers['routing'] / numbers['seconds']:.0f} %",
            **compared(numbers, unit, "U-Net"),
            "CPU seconds": f"{numbers['CPU seconds']:.2f}",
            "ratio of CPU": f"{numbers['CPU seconds'] / unit['CPU seconds']:.2f}",
            "threads": arguments.threads,
            **circumstances(),
        }
        for kind, numbers in measured.items()
    ]
    columns = [
        "training step",
        "parameters",
        "in gates",
        "seconds",
        "ratio to U-Net",
        "CPU seconds",
        "ratio of CPU",
        "gates' update",
        "RC and damping",
    ]
    columns += ["peak GB", "ratio of peaks", "threads", "processor", "torch", "commit", "date"]
    flags = " ".join(f"--{name.replace('_', '-')} {getattr(arguments, name)}" for name in _NUMBERS)
    print(
        write_table(
            arguments.output,
            "A training step of ENS-10's U-Nets",
            f"smoe bench ens10-step {flags}{' --dense' if arguments.dense else ''}",
            columns,
            rows,
            f"Batch {arguments.batch_size} of 14 x {arguments.rows} x {arguments.columns}, random data, float32: "
            f"forward, CRPS, backward, Adam; the quickest of {arguments.steps} steps after one to warm up. SMoE with "
            "RC loss and damping in all 12 layers. `gates' update` is the share of Adam's step of the gates, `RC and "
            "damping` that of what the layers' backward does besides convolving. CPU seconds are those of all threads, "
            "which other work on the machine disturbs less. The peak is that of the process above what it had before "
            "the network was made.",
        )
    )


if __name__ == "__main__":
    main()
