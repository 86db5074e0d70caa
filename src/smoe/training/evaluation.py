"""The metrics of a model on a data set: sums over all samples and processes, reduced once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any, Protocol, cast

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from smoe.training.batches import OrderedBatches

Collate = Callable[[Any], tuple[Tensor, Tensor]]


class Metric(Protocol):
    """A statistic and its reduction, as in `smoe.metrics`."""

    names: tuple[str, ...]
    num_totals: int

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Sums and counts of one batch, `(len(names), num_totals)`."""
        ...

    def values(self, totals: Tensor) -> dict[str, float]:
        """The values of the totals of all batches."""
        ...


def evaluate(
    accelerator: Accelerator,
    model: nn.Module,
    samples: Dataset[Any],
    metrics: Sequence[Metric],
    collate: Collate,
    batch_size: int,
    num_workers: int = 0,
) -> dict[str, float]:
    """The values of all metrics. Leaves the model in evaluation mode."""
    batches = OrderedBatches(num_samples(samples), batch_size, accelerator.process_index, accelerator.num_processes)
    totals = [
        torch.zeros(len(metric.names), metric.num_totals, dtype=torch.float64, device=accelerator.device)
        for metric in metrics
    ]
    model.eval()
    with torch.no_grad():
        for input, target in load_batches(samples, batches, collate, accelerator.device, num_workers):
            prediction = model(input)
            for total, metric in zip(totals, metrics, strict=True):
                total += metric.totals(prediction, target)
    values: dict[str, float] = {}
    for total, metric in zip(totals, metrics, strict=True):
        values |= metric.values(sum_over_processes(accelerator, total))
    return values


def sum_over_processes(accelerator: Accelerator, tensor: Tensor) -> Tensor:
    """The sum of every process's tensor, on all of them."""
    return cast(Tensor, accelerator.reduce(tensor, reduction="sum"))


def load_batches(
    samples: Dataset[Any], batches: Sampler[list[int]], collate: Collate, device: torch.device, num_workers: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets, batch by batch, on the device; read ahead by processes if there are workers."""
    loader = DataLoader(
        samples,
        batch_sampler=batches,
        collate_fn=collate,
        num_workers=num_workers,
        # Without a generator of its own, a loader draws from torch's, and a resumed run would draw once more.
        generator=torch.Generator(),
    )
    for input, target in loader:
        yield input.to(device, non_blocking=True), target.to(device, non_blocking=True)


def num_samples(samples: Dataset[Any]) -> int:
    """The length of a data set that has one."""
    if not isinstance(samples, Sized):
        raise TypeError(f"{type(samples).__name__} has no length")
    return len(samples)
