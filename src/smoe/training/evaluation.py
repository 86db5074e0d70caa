"""Predictions of a model over a data set, its metrics over all processes, and which model is evaluated."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from smoe.training.batches import Collate, OrderedBatches, load_batches, num_samples
from smoe.training.distribution import Distribution, sum_over_processes
from smoe.training.metrics import Metric, MetricSums
from smoe.training.plan import TrainingPlan
from smoe.training.schedule import WeightAverage
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


def evaluate(
    accelerator: Accelerator,
    model: nn.Module,
    samples: Dataset[Any],
    metrics: Sequence[Metric],
    collate: Collate,
    batch_size: int,
    num_workers: int = 0,
) -> dict[str, float]:
    """Returns the values of all metrics over all processes. The model stays in evaluation mode.

    Args:
        accelerator: Accelerator of the run.
        model: Model on the accelerator's device.
        samples: Data set of inputs and targets, with a length.
        metrics: Metrics to compute.
        collate: Makes a batch from what the data set returns for a list of indices.
        batch_size: Number of samples of a batch.
        num_workers: Number of processes that read ahead.
    """
    sums = MetricSums(metrics, accelerator.device)
    for prediction, target in predict(
        model,
        samples,
        batch_size,
        collate=collate,
        device=accelerator.device,
        num_workers=num_workers,
        process=accelerator.process_index,
        num_processes=accelerator.num_processes,
    ):
        sums.add(prediction, target)
    return sums.values(partial(sum_over_processes, accelerator))


class EvaluatedModel:
    """Makes the model to evaluate from the one that trains.

    Must be made before the model is distributed: a wrapped forward, copied, would still call the original.

    Args:
        task: Task that is trained.
        plan: Plan that decides whether weights are averaged.
        accelerator: Accelerator of the run.
    """

    def __init__(self, task: Task, plan: TrainingPlan, accelerator: Accelerator) -> None:
        self._task, self._accelerator = task, accelerator
        device = accelerator.device
        self.average = None if plan.average_every is None else WeightAverage(task.model.to(device), plan)
        # A model for another grid is made from a whole one.
        needs_twin = task.for_evaluation is not None and (self.average is None or plan.sharding == "full")
        self._twin = copy.deepcopy(task.model).to(device) if needs_twin else None

    @property
    def weights(self) -> nn.Module:
        """The model whose weights are stored as the best: the average, or the one that trains."""
        return self._task.model if self.average is None else self.average.model

    def distribute(self, distribution: Distribution) -> None:
        """Lets the processes hold the average as they hold the model that trains."""
        if self.average is not None:
            self.average.model = distribution.add(self.average.model)

    def get(self, distribution: Distribution) -> nn.Module:
        """Returns the model to evaluate. Every process must call this method.

        Args:
            distribution: Model that trains; returned if nothing else is evaluated.
        """
        weights = self.weights
        self._send_buffers(weights)
        if self._task.for_evaluation is None:
            return distribution.model if self.average is None else weights
        if self._twin is None:
            return self._task.for_evaluation(weights)
        self._twin.load_state_dict(distribution.whole_state_of(weights))
        return self._task.for_evaluation(self._twin)

    def _send_buffers(self, model: nn.Module) -> None:
        """Gives all processes the buffers of process 0, such as running means, in which they differ."""
        if self._accelerator.num_processes > 1:
            for buffer in model.buffers():
                torch.distributed.broadcast(buffer, src=0)
