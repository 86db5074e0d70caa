"""What the record of an epoch states about the routing."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import Tensor

from smoe.diagnostics import RoutingGain, RoutingWatch
from smoe.training.distribution import Distribution
from smoe.training.evaluation import sum_over_processes
from smoe.training.task import Task


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
    losses = RoutingGain(measured.pop("routing/loss"), measured.pop("routing/loss_of_commonest"))
    return {**values, "routing/gain": losses.gain, **measured}
