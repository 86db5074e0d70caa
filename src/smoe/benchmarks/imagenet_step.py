"""Times one full-size training step of ResNet-50 and its variants and takes its peak memory, each in its own process.

Run: smoe bench imagenet-step [--batch-size 16] [--size 176] [--rounds 3] [--steps 2] [--threads 1]. The networks
alternate, round by round, so that other work on the machine affects all of them. Prints the table and stores it in
results/bench.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.progress import track

from smoe.benchmarks.memory import reset_peak, status
from smoe.benchmarks.separate_process import compared, measure_apart
from smoe.benchmarks.stored_table import circumstances, write_table
from smoe.paper.imagenet.recipes import IMAGENET_RECIPES

_UNIT = "ResNet-50"
# Recipe and backend of each row; RC loss and damping as in the recipe.
KINDS = {
    _UNIT: ("imagenet/resnet50", "auto"),
    "3x3 convolutions as SMoE": ("imagenet/smoe", "auto"),
    "SMoE after the first layer": ("imagenet/smoe-first", "auto"),
    "SMoE after the last layer": ("imagenet/smoe-last", "auto"),
    "3x3 convolutions as LRLCN": ("imagenet/lrlcn", "auto"),
    "Wide ResNet-50-2": ("imagenet/wide-resnet50", "auto"),
}
_NUMBERS = ("batch_size", "size", "steps", "threads")


def step(kind: str, batch_size: int, size: int, num_steps: int, num_threads: int) -> dict[str, float]:
    """CPU seconds of the quickest step after one to warm up, and megabytes of the peak above what torch takes itself.

    CPU seconds of all threads: waiting for other work on the machine is not counted.
    """
    import torch

    from smoe.nn import track_loss_scale
    from smoe.paper.imagenet.build import make_task

    torch.set_num_threads(num_threads)
    recipe = IMAGENET_RECIPES[KINDS[kind][0]]
    recipe = replace(recipe, data=replace(recipe.data, train_size=size))
    small = replace(recipe, model=replace(recipe.model, filters=4, num_blocks=(1, 1, 1, 1)))

    def run(task: Any, images: torch.Tensor, shares: torch.Tensor) -> float:
        started = time.process_time()
        track_loss_scale(task.loss(task.model(images), shares), task.model).backward()
        task.optimizer.step()
        task.optimizer.zero_grad()
        return time.process_time() - started

    # Memory that a first step loads does not belong to the network.
    run(make_task(small), torch.randn(2, 3, size, size), torch.full((2, 1000), 1e-3))
    before = status("VmRSS")
    reset_peak()
    task = make_task(recipe)
    images = torch.randn(batch_size, 3, size, size)
    shares = torch.rand(batch_size, 1000).softmax(dim=1)
    seconds = [run(task, images, shares) for _ in range(1 + num_steps)]
    parameters = sum(parameter.numel() for parameter in task.model.parameters())
    return {"seconds": min(seconds[1:]), "peak MB": status("VmHWM") - before, "parameters": parameters}


def main(args: list[str] | None = None) -> None:
    """Measures and stores."""
    parser = argparse.ArgumentParser("smoe bench imagenet-step", description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--size", type=int, default=176, help="rows and columns of the images")
    parser.add_argument("--rounds", type=int, default=3, help="times that all kinds are measured, in turns")
    parser.add_argument("--steps", type=int, default=2, help="steps after one to warm up; the quickest counts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="all variants of the paper, not the two that matter most")
    parser.add_argument("--output", type=Path, help="file of the table; one for each size of batch and image if none")
    parser.add_argument("--kind", choices=list(KINDS), help=argparse.SUPPRESS)
    arguments = parser.parse_args(args)
    if arguments.kind is not None:
        numbers = step(arguments.kind, *(getattr(arguments, name) for name in _NUMBERS))
        print(json.dumps(numbers))
        return
    kinds = list(KINDS) if arguments.all else list(KINDS)[:2]
    turns = [kind for _ in range(arguments.rounds) for kind in kinds]
    measured: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    for kind in track(turns, description="measuring"):
        measured[kind].append(measure_apart(__file__, kind, KINDS[kind][1], arguments, _NUMBERS))
    quickest = {kind: min(rounds, key=lambda numbers: numbers["seconds"]) for kind, rounds in measured.items()}
    rows = []
    for kind, rounds in measured.items():
        ratios = [ours["seconds"] / unit["seconds"] for ours, unit in zip(rounds, measured[_UNIT], strict=True)]
        rows.append(
            {
                "training step": kind,
                **compared(quickest[kind], quickest[_UNIT], _UNIT),
                "median of the rounds": f"{statistics.median(ratios):.2f}",
                "threads": arguments.threads,
                **circumstances(),
            }
        )
    columns = ["training step", "parameters", "seconds", f"ratio to {_UNIT}", "median of the rounds", "peak GB"]
    columns += ["ratio of peaks", "threads", "processor", "torch", "commit", "date"]
    flags = f"--batch-size {arguments.batch_size} --size {arguments.size} --rounds {arguments.rounds} "
    flags += f"--steps {arguments.steps} --threads {arguments.threads}{' --all' if arguments.all else ''}"
    name = f"imagenet_step_{arguments.batch_size}_of_{arguments.size}.md"
    print(
        write_table(
            arguments.output or Path("results/bench") / name,
            "A training step of ResNet-50 and its variants",
            f"smoe bench imagenet-step {flags}",
            columns,
            rows,
            f"{arguments.batch_size} images of {arguments.size} x {arguments.size}, random data, float32: forward, "
            "cross-entropy, backward, SGD. CPU seconds of the quickest step of all rounds, each after one to warm up; "
            "the ratios of the rounds themselves beside it. SMoE with RC loss in every layer. The peak is that of the "
            "process above what it had before the network was made.",
        )
    )


if __name__ == "__main__":
    main()
