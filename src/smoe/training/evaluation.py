"""The metrics of a model on a data set, over all samples and processes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import Dataset

from smoe.metrics import Metric, MetricSums
from smoe.training.batches import Collate
from smoe.training.prediction import predict


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


def sum_over_processes(accelerator: Accelerator, tensor: Tensor) -> Tensor:
    """Returns the sum of a tensor over all processes, to every one of them."""
    return cast(Tensor, accelerator.reduce(tensor, reduction="sum"))
