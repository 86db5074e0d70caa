"""The base class of metrics: statistics of each pixel, their sums over all batches, and a reduction of the sums."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor


class Metric(ABC):
    """A stateless metric.

    `MetricSums` adds up the totals of all batches and processes and reduces them once, so that a small last batch
    weighs no more than its pixels.

    Attributes:
        names: Names of the values that the metric reports. They are known without data.
        num_totals: Number of sums for each name, with the count; two for a mean.
    """

    names: tuple[str, ...]
    num_totals: int = 2

    @abstractmethod
    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the sums of the statistics and, last, the number of pixels in one batch, for each name.

        Args:
            prediction: `(B, ..., H, W)`.
            target: The same shape.

        Returns:
            Sums and count, without gradient, float64, on the prediction's device, `(len(names), num_totals)`.
        """

    def reduction(self, sums: Sequence[float], count: float) -> float:
        """Return the value that is reported for sums of the statistics over `count` pixels: the mean of the first."""
        return sums[0] / count

    def values(self, totals: Tensor) -> dict[str, float]:
        """Return the value of each name.

        Args:
            totals: Totals added up over all batches, `(len(names), num_totals)`.

        Raises:
            ValueError: If the totals have another shape, or a count of zero: a mean over nothing has no value.
        """
        shape = (len(self.names), self.num_totals)
        if totals.shape != shape:
            raise ValueError(f"totals must have shape {shape}, got {tuple(totals.shape)}")
        values = {}
        for name, (*sums, count) in zip(self.names, totals.tolist(), strict=True):
            if not count > 0:
                raise ValueError(f"{name} needs at least one pixel, got a count of {count:g}")
            values[name] = self.reduction(sums, count)
        return values


def metric_names(metrics: Sequence[Metric]) -> tuple[str, ...]:
    """Return the names of all values that the metrics report; no data are needed."""
    return tuple(name for metric in metrics for name in metric.names)


def check_pair(prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Refuse a pair that would broadcast or is not real-valued, and bring half precision to float32.

    Args:
        prediction: Any shape.
        target: The same shape.

    Returns:
        Both without gradient, in float32 or float64.
    """
    if prediction.shape != target.shape:
        raise ValueError(
            f"prediction and target must have the same shape, got {tuple(prediction.shape)} and {tuple(target.shape)}"
        )
    return promote_pair(prediction, target)


def promote_pair(prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Refuse what is not real-valued; return both without gradient, in float32 or float64."""
    if not (prediction.is_floating_point() and target.is_floating_point()):
        raise ValueError(f"prediction and target must be floating point, got {prediction.dtype} and {target.dtype}")
    dtype = torch.promote_types(torch.float32, torch.promote_types(prediction.dtype, target.dtype))
    return prediction.detach().to(dtype), target.detach().to(dtype)
