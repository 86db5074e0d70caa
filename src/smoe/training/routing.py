"""What the records of the epochs, and of the end of a training, state about the routing."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from smoe.diagnostics import RoutingGain, RoutingWatch, routing_gains
from smoe.training.batches import load_batches, num_samples
from smoe.training.distribution import Distribution, sum_over_processes
from smoe.training.task import Task

# Largest number of validation samples of a process with which the layers are compared with convolutions.
_MOST_SAMPLES = 32


def routing_record(
    watch: RoutingWatch,
    task: Task,
    accelerator: Accelerator,
    distribution: Distribution,
    batch: tuple[Tensor, Tensor],
) -> dict[str, float]:
    """Returns the values `routing/...` of an epoch, over all processes; empty for a model without gates.

    Every process must call this function.

    Args:
        watch: Watch of the routing.
        task: Task that is trained.
        accelerator: Accelerator of the run.
        distribution: Model of the task, as the processes hold it.
        batch: Input and target on which the routing is measured.
    """
    with distribution.whole(task.model):
        values = watch.observe(task.model)
    with accelerator.autocast():
        measured = watch.measure(task.model, task.loss, *batch)
    distribution.end_evaluation(task.model)
    if not measured:
        return values
    numbers = torch.tensor(list(measured.values()), dtype=torch.float64, device=accelerator.device)
    means = sum_over_processes(accelerator, numbers) / accelerator.num_processes
    measured = dict(zip(measured, means.tolist(), strict=True))
    return {**values, **measured}


def gains_of_routing(
    task: Task, model: nn.Module, accelerator: Accelerator, distribution: Distribution, most_samples: int
) -> list[RoutingGain]:
    """Returns what the routing of each layer is worth on the validation split, over all processes.

    Every process must call this function.

    Args:
        task: Task that is trained.
        model: Its model, with the weights to measure.
        accelerator: Accelerator of the run.
        distribution: Model of the task, as the processes hold it.
        most_samples: Number of samples of a training pass of a process, whose memory there is.
    """
    samples = task.splits["validation"]
    # As many for each process: all must make the same passes.
    num_taken = min(_MOST_SAMPLES, most_samples, num_samples(samples) // accelerator.num_processes)
    if num_taken == 0:
        return []
    spread = torch.linspace(0, num_samples(samples) - 1, num_taken * accelerator.num_processes).long().tolist()
    chosen = spread[accelerator.process_index :: accelerator.num_processes]
    ((input, target),) = load_batches(samples, [chosen], task.collate, accelerator.device)
    with accelerator.autocast():
        gains = routing_gains(model, task.loss, input, target)
    distribution.end_evaluation(model)
    if accelerator.num_processes == 1 or not gains:
        return gains
    numbers: list[list[float]] = []
    for gain in gains:
        n, difference = gain.num_samples, gain.loss_of_convolution - gain.loss
        squares = n * difference**2 + (n * (n - 1) * gain.standard_error**2 if n > 1 else 0.0)
        numbers.append([n, n * gain.loss, n * gain.loss_of_convolution, squares])
    sums = sum_over_processes(accelerator, torch.tensor(numbers, dtype=torch.float64, device=accelerator.device))
    return [
        _together(gain, int(n), loss / n, convolution / n, squares)
        for gain, (n, loss, convolution, squares) in zip(gains, sums.tolist(), strict=True)
    ]


def _together(gain: RoutingGain, n: int, loss: float, convolution: float, squares: float) -> RoutingGain:
    """The comparison over n samples of all processes, by the sum of the squares of their differences."""
    variance = max(0.0, squares - n * (convolution - loss) ** 2) / (n - 1)
    return replace(
        gain, loss=loss, loss_of_convolution=convolution, standard_error=math.sqrt(variance / n), num_samples=n
    )
