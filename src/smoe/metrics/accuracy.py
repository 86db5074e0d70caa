"""How often a classifier is right, and which classes it mistakes (paper section 3.4)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from smoe.metrics.metric import Metric


class Accuracy(Metric):
    """Percentage of samples whose class is among the most likely ones: `accuracy`, and `top5_accuracy` and so on.

    Of equal logits the lower class counts as the more likely, so that a constant answer is not right everywhere. A
    sample with a logit that is not a number counts as wrong.

    Args:
        top: Numbers of most likely classes that are compared with the true one.
    """

    def __init__(self, top: Sequence[int] = (1,)) -> None:
        if not top or min(top) < 1:
            raise ValueError(f"top must be numbers from 1 on, got {tuple(top)}")
        self.top = tuple(top)
        self.names = tuple("accuracy" if number == 1 else f"top{number}_accuracy" for number in self.top)

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the right samples and all samples, for each number.

        Args:
            prediction: Logits `(B, N)`.
            target: Classes `(B,)`.
        """
        rank = class_ranks(prediction, target)
        right = [torch.count_nonzero(rank < number) for number in self.top]
        counts = torch.stack(right).double()
        return torch.stack([counts, torch.full_like(counts, len(target))], dim=1)

    def reduction(self, sums: Sequence[float], count: float) -> float:
        """Return the percentage."""
        # Multiplied first: exactly 100 only if all are right.
        return 100.0 * sums[0] / count


class ClassErrors(Metric):
    """Percentage of wrong samples of each class, as `error/class_0` and so on; a class without samples has none.

    Args:
        num_classes: N, the number of classes.
    """

    def __init__(self, num_classes: int) -> None:
        if num_classes < 1:
            raise ValueError(f"num_classes must be at least 1, got {num_classes}")
        self.names = tuple(f"error/class_{number}" for number in range(num_classes))

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the wrong samples and all samples, for each class."""
        if prediction.ndim != 2 or prediction.shape[1] != len(self.names):
            raise ValueError(f"prediction must be (B, {len(self.names)}), got {tuple(prediction.shape)}")
        is_wrong = class_ranks(prediction, target) > 0
        num_classes = len(self.names)
        wrong, count = (torch.bincount(which, minlength=num_classes) for which in (target[is_wrong], target))
        return torch.stack([wrong, count], dim=1).double()

    def reduction(self, sums: Sequence[float], count: float) -> float:
        """Return the percentage."""
        return 100.0 * sums[0] / count

    def values(self, totals: Tensor) -> dict[str, float]:
        """Return the errors of the classes that occur."""
        if totals.shape != (len(self.names), 2):
            raise ValueError(f"totals must have shape {(len(self.names), 2)}, got {tuple(totals.shape)}")
        return {
            name: self.reduction([wrong], count)
            for name, (wrong, count) in zip(self.names, totals.tolist(), strict=True)
            if count > 0
        }


def class_ranks(prediction: Tensor, target: Tensor) -> Tensor:
    """Return how many classes are more likely than the true one, `(B,)`; N for a sample with a NaN among its logits.

    Args:
        prediction: Logits `(B, N)`.
        target: Classes `(B,)`, from 0 to N - 1.
    """
    if prediction.ndim != 2 or target.shape != prediction.shape[:1] or target.is_floating_point():
        raise ValueError(
            f"prediction must be logits (B, N) and target integer classes (B,), got {tuple(prediction.shape)} and "
            f"{target.dtype} of {tuple(target.shape)}"
        )
    num_classes = prediction.shape[1]
    if target.numel() and not 0 <= int(target.min()) <= int(target.max()) < num_classes:
        raise ValueError(f"classes must be in [0, {num_classes - 1}], got {int(target.min())} to {int(target.max())}")
    prediction, target = prediction.detach(), target.long()[:, None]
    own = prediction.gather(1, target)
    numbers = torch.arange(num_classes, device=prediction.device)
    is_ahead = (prediction > own) | ((prediction == own) & (numbers < target))
    rank = is_ahead.sum(dim=1)
    return rank.masked_fill_(prediction.isnan().any(dim=1), num_classes)


def confusion_matrix(predicted: Tensor, target: Tensor, num_classes: int) -> Tensor:
    """Return how many samples of each class (rows) were predicted as each class (columns), `(N, N)` int64.

    Args:
        predicted: Predicted classes `(B,)`.
        target: True classes `(B,)`.
        num_classes: N, the number of classes.
    """
    if predicted.shape != target.shape or predicted.ndim != 1:
        raise ValueError(f"both must be (B,), got {tuple(predicted.shape)} and {tuple(target.shape)}")
    cells = target.long() * num_classes + predicted.long()
    return torch.bincount(cells, minlength=num_classes**2).view(num_classes, num_classes)
