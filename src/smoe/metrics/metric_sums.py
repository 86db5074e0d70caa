"""Adds up the totals of metrics over batches and processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from smoe.metrics.metric import Metric


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
