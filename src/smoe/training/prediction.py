"""Predictions of a model over a data set, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from smoe.training.batches import Collate, OrderedBatches, load_batches, num_samples
from smoe.training.devices import make_accelerator
from smoe.training.plan import TrainingPlan
from smoe.training.task import Task


def predict(
    model: nn.Module,
    samples: Dataset[Any],
    batch_size: int,
    *,
    collate: Collate = default_collate,
    device: torch.device | str | None = None,
    num_workers: int = 0,
    process: int = 0,
    num_processes: int = 1,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the prediction and the target of each batch of a data set, in the order of its samples.

    The model is put into evaluation mode and stays in it. Predictions have no gradient.

    Args:
        model: Model that turns inputs into predictions. It must be on the device.
        samples: Data set of inputs and targets, with a length.
        batch_size: Number of samples of a batch. The last batch may be smaller.
        collate: Makes a batch from what the data set returns for a list of indices.
        device: Device of inputs and targets; that of the model's parameters if not given.
        num_workers: Number of processes that read ahead.
        process: Number of this process, if several share the work. Each sample is predicted by one of them.
        num_processes: Number of processes that share the work.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if device is None:
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    batches = OrderedBatches(num_samples(samples), batch_size, process, num_processes)
    model.eval()
    for input, target in load_batches(samples, batches, collate, device, num_workers):
        # Not around the loop: the caller's code between two batches keeps its own mode.
        with torch.no_grad():
            prediction = model(input)
        yield prediction, target


def predict_split(task: Task, plan: TrainingPlan, split: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the prediction and the target of each batch of a split of a task.

    Args:
        task: Task whose model predicts; the model for evaluation, if the task makes another one.
        plan: Plan that gives device, precision, batch size and workers.
        split: Name of the split, such as `test`.

    Raises:
        ValueError: If several processes run: their predictions would not be in order.
    """
    accelerator = make_accelerator(plan)
    if accelerator.num_processes > 1:
        raise ValueError(
            f"a split is predicted in order by one process, but {accelerator.num_processes} run; start the command "
            "without a launcher"
        )
    model = task.model if task.for_evaluation is None else task.for_evaluation(task.model)
    yield from predict(
        accelerator.prepare(model),
        task.splits[split],
        plan.evaluation_batch_size,
        collate=task.collate,
        device=accelerator.device,
        num_workers=plan.num_workers,
    )
