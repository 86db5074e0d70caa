"""The training loss as a metric on the validation split."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from smoe.metrics.metric import Metric


class MeanLoss(Metric):
    """The mean over all samples of a loss that is itself a mean over samples; reported as `loss`.

    Args:
        loss: Function of prediction and target that returns a scalar.
    """

    names = ("loss",)

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.loss = loss

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the loss times the number of samples, and the number of samples.

        Args:
            prediction: `(B, ...)`. Half precision is brought to float32.
            target: Target of any shape and dtype that the loss takes, such as class numbers `(B,)`.
        """
        num_samples = prediction.shape[0]
        dtype = torch.promote_types(prediction.dtype, torch.float32)
        with torch.no_grad():
            total = self.loss(prediction.to(dtype), target).double() * num_samples
        return torch.stack([total, total.new_tensor(float(num_samples))])[None]
