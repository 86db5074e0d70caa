"""What the training loop trains: a model, its optimizer and loss, its data and its metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from smoe.metrics import Metric
from smoe.training.batches import Collate


@dataclass
class Task:
    """What is trained on what.

    Attributes:
        model: input to prediction.
        optimizer: of the model's parameters.
        loss: prediction and target to a scalar.
        metrics: evaluated on the validation split after each epoch and on the test split at the end.
        splits: data sets named `train`, `validation` and `test`; a sample is an input and a target.
        collate: makes a batch of what the data set returns for a list of indices.
        seed: of the shuffles.
        auxiliary_loss: of the model after its forward pass, added to the loss of each training step.
        begin_epoch: called with the number of an epoch, from 1, before its first batch; also where a resumed run goes
            on within one.
        num_repetitions: copies of each training sample in a batch, for samples that are drawn anew each time; see
            `ShuffledBatches`.
        for_evaluation: makes the model to evaluate of one with the trained weights, such as one for larger images; a
            new one each time.
        regions: number of the known region of each pixel `(H, W)`, such as land or sea, which the routing is compared
            with.
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
