"""Metrics: statistics of a batch, their sums over a data set, and the reduction of the sums to a value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence

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


class MetricSums:
    """The totals of several metrics, in float64, and the values that they reduce to.

    All totals lie in one tensor, so that processes are joined by a single reduction.

    Args:
        metrics: Metrics to compute. No two of them may report the same name.
        device: Device of the totals; that of the predictions, so that adding a batch does not wait for it.
    """

    def __init__(self, metrics: Sequence[Metric], device: torch.device | str | None = None) -> None:
        counts = Counter(name for metric in metrics for name in metric.names)
        repeated = [name for name, count in counts.items() if count > 1]
        if repeated:
            raise ValueError(
                f"each metric must have a name of its own, got {repeated[0]!r} {counts[repeated[0]]} times"
            )
        self.metrics = tuple(metrics)
        sizes = [len(metric.names) * metric.num_totals for metric in self.metrics]
        self._totals = torch.zeros(sum(sizes), dtype=torch.float64, device=device)
        self._sizes = sizes

    def add(self, prediction: Tensor, target: Tensor) -> None:
        """Adds the totals of a batch."""
        for metric, total in self._of_metrics(self._totals):
            total += metric.totals(prediction, target).to(total.device)

    def values(self, sum_over_processes: Callable[[Tensor], Tensor] | None = None) -> dict[str, float]:
        """Returns the value of each name over all batches.

        Args:
            sum_over_processes: Function that adds up a tensor over all processes. Every process must call this method.
                None: the values of the batches of this process.

        Raises:
            ValueError: If a metric has a count of zero.
        """
        # A copy, because a reduction may work in place, and the values may be wanted again.
        totals = self._totals if sum_over_processes is None else sum_over_processes(self._totals.clone())
        values: dict[str, float] = {}
        for metric, total in self._of_metrics(totals):
            values |= metric.values(total)
        return values

    def _of_metrics(self, totals: Tensor) -> list[tuple[Metric, Tensor]]:
        parts = totals.split(self._sizes)
        return [
            (metric, part.view(len(metric.names), metric.num_totals))
            for metric, part in zip(self.metrics, parts, strict=True)
        ]


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
