"""What the training loop trains: a model, its optimiser and loss, its data and its metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from smoe.training.batches import Collate
from smoe.training.metrics import Metric


@dataclass
class Task:
    """A model, its optimiser and loss, its data and its metrics.

    Attributes:
        model: Model that turns inputs into predictions.
        optimizer: Optimiser of the model's parameters.
        loss: Function of prediction and target that returns a scalar.
        metrics: Metrics of the validation split after each epoch and of the test split at the end.
        splits: Data sets named `train`, `validation` and, unless nothing is tested at the end, `test`; a sample is an
            input and a target.
        collate: Makes a batch from what the data set returns for a list of indices.
        seed: Seed of the shuffles.
        auxiliary_loss: Function of the model after its forward pass, added to the loss of each training step.
        begin_epoch: Called with the number of an epoch, from 1, before its first batch; also where a resumed run
            continues within an epoch.
        num_repetitions: Number of copies of each training sample in a batch, for samples that are drawn anew each time;
            see `ShuffledBatches`.
        for_evaluation: Makes the model to evaluate from one with the trained weights, such as one for larger images; a
            new one each time.
        regions: Number of the known region of each pixel `(H, W)`, such as land or sea, with which the routing is
            compared.
        reads_ahead: Read training batches by a thread, one ahead; for samples that draw nothing at random.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[Tensor, Tensor], Tensor]
    metrics: Sequence[Metric]
    splits: Mapping[str, Dataset[Any]]
    collate: Collate
    seed: int
    auxiliary_loss: Callable[[nn.Module], Tensor] | None = None
    begin_epoch: Callable[[int], None] | None = None
    num_repetitions: int = 1
    for_evaluation: Callable[[nn.Module], nn.Module] | None = None
    regions: Tensor | None = None
    reads_ahead: bool = False
