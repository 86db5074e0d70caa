"""The training loss as a metric, to watch on the validation split."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from smoe.metrics.metric import Metric, check_pair


class MeanLoss(Metric):
    """The mean over all samples of a loss that is itself a mean over samples; reported as `loss`.

    Args:
        loss: prediction and target to a scalar.
    """

    names = ("loss",)

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.loss = loss

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the loss times the samples, and the samples."""
        prediction, target = check_pair(prediction, target)
        num_samples = prediction.shape[0]
        with torch.no_grad():
            total = self.loss(prediction, target).double() * num_samples
        return torch.stack([total, total.new_tensor(float(num_samples))])[None]
