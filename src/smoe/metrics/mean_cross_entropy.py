"""The cross-entropy of a classifier as a metric, without label smoothing."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from smoe.losses.classification import check_classes
from smoe.metrics.metric import Metric


class MeanCrossEntropy(Metric):
    """The mean over all samples of the cross-entropy, in nats; reported as `cross_entropy`."""

    names = ("cross_entropy",)

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the sum over the samples, and their number.

        Args:
            prediction: Logits `(B, N)`.
            target: Classes `(B,)`, or probabilities `(B, N)`.
        """
        check_classes(prediction, target)
        # A sum of many in float32 would lose digits.
        total = F.cross_entropy(prediction.detach().double(), _as_double(target), reduction="sum")
        return torch.stack([total, total.new_tensor(float(len(target)))])[None]


def _as_double(target: Tensor) -> Tensor:
    return target.double() if target.is_floating_point() else target.long()
