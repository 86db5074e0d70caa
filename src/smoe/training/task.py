"""What the training loop trains: a model, its optimiser and loss, its metrics, its data, and the samples of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from smoe._signals import leaving_signals

Batch = tuple[Tensor, Tensor]
Collate = Callable[[Any], Batch]
"""Function that makes the input and the target of a batch from what a data set returns for a list of indices."""


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

        Without gradient, float64, on the prediction's device, `(len(names), num_totals)`.
        """

    def reduction(self, sums: Sequence[float], count: float) -> float:
        """Return the value that is reported for sums of the statistics over `count` pixels: the mean of the first."""
        return sums[0] / count

    def values(self, totals: Tensor) -> dict[str, float]:
        """Return the value of each name for totals that were added up over all batches; a count of 0 is refused."""
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
    """Return the names of all values that the metrics report."""
    return tuple(name for metric in metrics for name in metric.names)


class MetricSums:
    """The totals of several metrics of different names, in float64, and the values that they reduce to.

    All totals lie in one tensor, so that processes are joined by a single reduction.
    """

    def __init__(self, metrics: Sequence[Metric], device: torch.device | str | None = None) -> None:
        counts = Counter(metric_names(metrics))
        repeated = [name for name, count in counts.items() if count > 1]
        if repeated:
            raise ValueError(
                f"each metric must have a name of its own, got {repeated[0]!r} {counts[repeated[0]]} times"
            )
        self.metrics = tuple(metrics)
        self._sizes = [len(metric.names) * metric.num_totals for metric in self.metrics]
        self._totals = torch.zeros(sum(self._sizes), dtype=torch.float64, device=device)

    def add(self, prediction: Tensor, target: Tensor) -> None:
        """Add the totals of a batch."""
        for metric, total in self._of_metrics(self._totals):
            total += metric.totals(prediction, target).to(total.device)

    def values(self, sum_over_processes: Callable[[Tensor], Tensor] | None = None) -> dict[str, float]:
        """Return the value of each name over all batches, of all processes if there is a function that adds them up."""
        # A copy, because a reduction may work in place, and the values may be wanted again.
        totals = self._totals if sum_over_processes is None else sum_over_processes(self._totals.clone())
        values: dict[str, float] = {}
        for metric, total in self._of_metrics(totals):
            values |= metric.values(total)
        return values

    def _of_metrics(self, totals: Tensor) -> list[tuple[Metric, Tensor]]:
        parts = zip(self.metrics, totals.split(self._sizes), strict=True)
        return [(metric, part.view(len(metric.names), metric.num_totals)) for metric, part in parts]


class MeanLoss(Metric):
    """The mean over all samples of a loss that is itself a mean over samples; reported as `loss`."""

    names = ("loss",)

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.loss = loss

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the loss times the number of samples, and the number of samples."""
        num_samples = prediction.shape[0]
        dtype = torch.promote_types(prediction.dtype, torch.float32)
        with torch.no_grad():
            total = self.loss(prediction.to(dtype), target).double() * num_samples
        return torch.stack([total, total.new_tensor(float(num_samples))])[None]


@dataclass
class Task:
    """A model, its optimiser and loss, its data and its metrics.

    Attributes:
        model: Model that turns inputs into predictions.
        optimizer: Optimiser of the model's parameters.
        loss: Function of prediction and target that returns a scalar.
        metrics: Metrics of the validation split after each epoch and of the test split at the end.
        splits: Data sets named `train`, `validation` and, unless nothing is tested at the end, `test`; a sample is an
            input and a target. If the training set has a method `start_epoch`, it is called with the number of an epoch
            before its first batch, to draw samples anew; it must depend on that number only.
        collate: Makes a batch from what the data set returns for a list of indices.
        seed: Seed of the shuffles.
        auxiliary_loss: Function of the model after its forward pass, added to the loss of each training step.
        begin_epoch: Called with the number of an epoch, from 1, before its first batch; also where a resumed run
            continues within an epoch.
        num_repetitions: Number of copies of each training sample in a batch; see `ShuffledBatches`.
        for_evaluation: Makes the model to evaluate from one with the trained weights, such as one for larger images; a
            new one each time.
        regions: Number of the known region of each pixel `(H, W)`, such as land or sea, with which the routing is
            compared.
        reads_ahead: Read training batches by a thread, one ahead; for samples that draw nothing at random.
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
    reads_ahead: bool = False


class ShuffledBatches(Sampler[list[int]]):
    """Batches of a training epoch, shuffled by the seed and the epoch's number.

    Each process gets its equal share of every batch, so the batches do not depend on the number of processes; a share
    may come in equal parts, whose gradients are summed. Samples that do not fill a last batch are left out of an epoch.

    With repetitions (repeated augmentation), copy k of sample i is the number `i + k * num_samples`, for a data set
    that draws them differently. An epoch has as many batches as without repetitions, and so fewer different samples.
    The copies of a sample follow each other in the batch, and each of n processes and parts takes every n-th of them:
    with n at least the number of repetitions, none of them has two copies of the same sample.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        seed: int,
        process: int = 0,
        num_processes: int = 1,
        *,
        part_size: int | None = None,
        num_repetitions: int = 1,
    ) -> None:
        if batch_size % num_processes:
            raise ValueError(f"a batch of {batch_size} cannot be shared equally by {num_processes} processes")
        if num_samples < batch_size:
            raise ValueError(f"{num_samples} samples do not fill one batch of {batch_size}; lower the batch size")
        share = batch_size // num_processes
        if part_size is not None and share % part_size:
            raise ValueError(
                f"the {share} samples of a batch of {batch_size} that a process has cannot be cut into parts of "
                f"{part_size}"
            )
        self.num_samples, self.batch_size, self.seed = num_samples, batch_size, seed
        self.process, self.num_processes = process, num_processes
        self.num_parts = 1 if part_size is None else share // part_size
        self.num_repetitions = num_repetitions
        self.num_batches = num_samples // batch_size
        self.epoch, self.first_batch = 0, 0

    def start(self, epoch: int, first_batch: int = 0) -> None:
        """Set the epoch of the next iteration, and its first batch."""
        self.epoch, self.first_batch = epoch, first_batch

    def __len__(self) -> int:
        return (self.num_batches - self.first_batch) * self.num_parts

    def __iter__(self) -> Iterator[list[int]]:
        # Philox-like independence of neighbouring seeds is not needed: the mixing keeps (0, 1) and (1, 0) apart.
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(self.num_samples, generator=generator)
        if self.num_repetitions > 1:
            copies = torch.arange(self.num_repetitions) * self.num_samples
            order = (order[:, None] + copies).flatten()
        stride = self.num_parts * self.num_processes
        for batch in range(self.first_batch, self.num_batches):
            samples = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            for part in range(self.num_parts):
                yield samples[part * self.num_processes + self.process :: stride].tolist()


class OrderedBatches(Sampler[list[int]]):
    """All samples in order, each in exactly one batch of one process."""

    def __init__(self, num_samples: int, batch_size: int, process: int = 0, num_processes: int = 1) -> None:
        self.samples = range(process, num_samples, num_processes)
        self.batch_size = batch_size

    def __len__(self) -> int:
        return -(-len(self.samples) // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        for first in range(0, len(self.samples), self.batch_size):
            yield list(self.samples[first : first + self.batch_size])


def load_batches(
    samples: Dataset[Any],
    batches: Iterable[list[int]],
    collate: Collate,
    device: torch.device | str,
    num_workers: int = 0,
    *,
    reads_ahead: bool = False,
) -> Iterator[Batch]:
    """Yield the inputs and targets of batches on the device, read by this process or by `num_workers` others.

    With `reads_ahead`, and no such processes, a thread reads a batch while the one before is computed: for samples that
    draw nothing at random and are read as a batch (`__getitems__`).
    """
    is_pinned = torch.device(device).type == "cuda"
    if reads_ahead and num_workers == 0:
        read = _read_by_thread(samples, batches, collate, is_pinned=is_pinned)
    else:
        loader = DataLoader(
            samples,
            batch_sampler=batches,
            collate_fn=collate,
            num_workers=num_workers,
            pin_memory=is_pinned,
            # Without a generator of its own, a loader draws from torch's, and a resumed run would draw once more.
            generator=torch.Generator(),
        )
        with leaving_signals():
            # The processes that read are started here. They end by themselves if this one is killed.
            read = iter(loader)
    for input, target in read:
        yield input.to(device, non_blocking=True), target.to(device, non_blocking=True)


def _read_by_thread(
    samples: Any, batches: Iterable[list[int]], collate: Collate, *, is_pinned: bool
) -> Iterator[Batch]:
    """Yield batches in their order, of which the next one is being read, into pinned memory if so asked."""

    def read(chosen: list[int]) -> Batch:
        input, target = collate(samples.__getitems__(chosen))
        return (input.pin_memory(), target.pin_memory()) if is_pinned else (input, target)

    with ThreadPoolExecutor(1, thread_name_prefix="smoe-batches") as pool:
        waiting: Future[Batch] | None = None
        for indices in batches:
            following = pool.submit(read, indices)
            if waiting is not None:
                yield waiting.result()
            waiting = following
        if waiting is not None:
            yield waiting.result()


def num_samples(samples: Dataset[Any]) -> int:
    """Return the length of a data set that has one."""
    if not isinstance(samples, Sized):
        raise TypeError(f"{type(samples).__name__} has no length")
    return len(samples)
