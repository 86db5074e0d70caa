"""The loss of classifiers (paper section 3.4)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class CrossEntropy(nn.Module):
    """The mean cross-entropy over a batch.

    Its gradient at the logits, times the number of samples, is `softmax(logits) - target`: at most 1, and near 0 for a
    sample that is classified correctly with confidence. For the consequences for routing classification see
    `smoe.ops._classification.choice_errors`.

    Args:
        label_smoothing: Share of the target that is spread evenly over all classes.
    """

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        if not 0.0 <= label_smoothing < 1.0:
            raise ValueError(f"label_smoothing must be in [0, 1), got {label_smoothing}")
        self.label_smoothing = label_smoothing

    def forward(self, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Returns the loss, a scalar.

        Args:
            prediction: Logits `(B, N)`.
            target: Classes `(B,)`, integers; or probabilities `(B, N)`, such as those of mixed images.
        """
        check_classes(prediction, target)
        return F.cross_entropy(prediction, target, label_smoothing=self.label_smoothing)


def check_classes(prediction: torch.Tensor, target: torch.Tensor) -> None:
    """Raises a ValueError unless these are logits `(B, N)` and integer classes `(B,)` or probabilities `(B, N)`."""
    is_index = target.ndim == 1 and not target.is_floating_point()
    is_share = target.ndim == 2 and target.is_floating_point() and target.shape == prediction.shape
    if prediction.ndim != 2 or len(target) != len(prediction) or not (is_index or is_share):
        raise ValueError(
            "prediction must be logits (B, N) and target integer classes (B,) or probabilities (B, N), got "
            f"{tuple(prediction.shape)} and {target.dtype} of {tuple(target.shape)}"
        )
