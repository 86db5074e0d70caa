"""A training step of recipes on a GPU or a CPU: time, peak memory, and the kernels of its routed convolutions.

Steps are made on random data of the true shape: no data set is needed. On a GPU, times come from CUDA events and the
peak from PyTorch's allocator; on a CPU, from the processor time and the resident memory of the process.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from rich.progress import track
from torch.utils._python_dispatch import TorchDispatchMode

from smoe.command_line import UsageError, parse
from smoe.ops._operators import library_for
from smoe.ops.triton._choice import why_not_sparse
from smoe.training.plan import TrainingPlan
from smoe_paper.benchmarks.device import event_medians, peak_megabytes, require_gpu
from smoe_paper.benchmarks.memory import reset_peak, status
from smoe_paper.benchmarks.timing import circumstances, interleaved_medians, write_table
from smoe_paper.experiments.experiment import experiment_of, find_recipe
from smoe_paper.experiments.recipe import Recipe
from smoe_paper.experiments.runs import set_num_threads
from smoe_paper.experiments.task import DryTraining

COLUMNS = ("recipe", "batch", "ms", "ratio to the first", "samples/s", "peak MB", "routed convolutions")
# How float32 is multiplied is set apart from the precision of autocast.
PRECISIONS: dict[str, Literal["no", "bf16", "fp16"]] = {"fp32": "no", "tf32": "no", "fp16": "fp16", "bf16": "bf16"}


class RoutedConvolutions(TorchDispatchMode):
    """Notes which implementation each routed convolution of a forward pass is computed by."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operation, and notes it if it is a routed convolution."""
        del types
        if func is torch.ops.smoe.routed_conv2d.default:
            self.kernels[_kernels_of(args[0], args[1], args[2], args[3], why_not_sparse)] += 1
        elif func is torch.ops.smoe.routed_conv3d.default:
            self.kernels[
                _kernels_of(args[0], args[1], args[2], args[3], lambda *_: "volumes have no sparse kernels")
            ] += 1
        return func(*args, **(kwargs or {}))

    def describe(self) -> str:
        """Number of convolutions by implementation."""
        return ", ".join(f"{number} {kernels}" for kernels, number in self.kernels.most_common()) or "none"


def _kernels_of(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    why_not: Callable[..., str | None],
) -> str:
    if not input.is_cuda:
        library = library_for(input, weight)
        return "dense" if library is None else f"native ({library.instruction_set})"
    reason = why_not(input, weight, indices, expert_channels)
    return "sparse" if reason is None else f"dense ({reason})"


def measure(recipe: Recipe, plan: TrainingPlan, steps: int) -> dict[str, Any]:
    """Milliseconds of a step (median), peak megabytes above the model's, and the kernels of its routed convolutions.

    Args:
        recipe: Recipe.
        plan: Its plan, with the device and the precision to measure.
        steps: Number of steps, after some to warm up.
    """
    training = DryTraining(experiment_of(recipe).build_dry(recipe), plan)
    training.model.train()
    size = plan.part_size or plan.batch_size
    num_parts = -(-plan.batch_size // size)
    batch = training.batch(size)

    def step() -> None:
        for _ in range(num_parts):
            training.compute_gradients(*batch)
        training.update()

    with RoutedConvolutions() as convolutions:
        training.compute_gradients(*batch)
    training.update()
    if plan.device == "cpu":
        step()  # makes the state of the optimiser
        before = status("VmRSS")
        reset_peak()
        step()
        peak = status("VmHWM") - before
        median = 1e3 * interleaved_medians({"step": step}, seconds=0, min_rounds=steps, clock=time.process_time)["step"]
    else:
        median = event_medians({"step": step}, rounds=steps)["step"]
        peak = peak_megabytes(step)
    return {"ms": median, "batch": num_parts * size, "peak MB": peak, "kernels": convolutions.describe()}


@dataclass(frozen=True)
class StepOptions:
    """Measures a training step of recipes, prints a table and stores it.

    Attributes:
        recipes: Names of recipes, or recipes of your own as `path/to/recipe.py`; times are compared with the first.
        device: `cuda`, `cuda:N` or `cpu`.
        dtype: `bf16` and `fp16` are autocast, `tf32` and `fp32` are ways to multiply float32 on a GPU.
        batch_size: Samples of a step; those of each recipe if not given.
        steps: Measured steps.
        output: Markdown file of the table; a .jsonl beside it holds the rows.
    """

    recipes: tyro.conf.Positional[tuple[str, ...]]
    device: str = "cuda"
    dtype: Literal["fp32", "tf32", "fp16", "bf16"] = "bf16"
    batch_size: int | None = None
    steps: int = 30
    output: Path | None = None


def main(args: list[str] | None = None) -> None:
    """Measures and stores."""
    options = parse(StepOptions, args or [], prog="smoe bench step")
    if not options.recipes:
        raise UsageError("name a recipe: smoe bench step weather/smoe (see smoe recipes)")
    recipes = {name: find_recipe(name) for name in options.recipes}
    is_cpu = options.device == "cpu"
    if not is_cpu:
        torch.cuda.set_device(require_gpu(options.device))
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = options.dtype == "tf32"
    made = circumstances()
    where = made["processor"] if is_cpu else torch.cuda.get_device_name(options.device)
    rows: list[dict[str, Any]] = []
    for name, recipe in track(recipes.items(), description="measuring"):
        changes = {} if options.batch_size is None else {"batch_size": options.batch_size}
        plan = replace(
            recipe.training, device="cpu" if is_cpu else "auto", precision=PRECISIONS[options.dtype], **changes
        )
        set_num_threads(recipe)
        found = measure(replace(recipe, training=plan), plan, options.steps)
        gc.collect()  # before the next network is made
        rows.append({"recipe": name, **found, **made, "device": where, "dtype": options.dtype})
    for row in rows:
        row["ratio to the first"] = f"{row['ms'] / rows[0]['ms']:.2f}"
    for row in rows:
        row |= {
            "samples/s": f"{1e3 * row['batch'] / row['ms']:.1f}",
            "ms": f"{row['ms']:.2f}",
            "peak MB": f"{row['peak MB']:.0f}",
            "routed convolutions": row.pop("kernels"),
        }
    clock = (
        f"processor time, {torch.get_num_threads()} threads" if is_cpu else f"CUDA events, CUDA {torch.version.cuda}"
    )
    notes = (
        f"{where}, {options.dtype}. A step is forward, loss, backward and the optimiser on random data, the median of "
        f"{options.steps}; {clock}. The peak is above what the step found. torch {made['torch']}, commit "
        f"{made['commit']}, {made['date']}."
    )
    path = options.output or Path("paper/results/gpu") / f"step-{where.replace(' ', '-')}-{options.dtype}.md"
    command = f"smoe bench step {' '.join(recipes)} --device {options.device} --dtype {options.dtype}"
    command += "" if options.batch_size is None else f" --batch-size {options.batch_size}"
    sys.stdout.write(write_table(path, f"Training steps on {where}", command, COLUMNS, rows, notes))
