"""What the training loop trains: a model, its optimiser, loss and metrics, its data, and the samples of each batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from smoe._signals import leaving_signals
from smoe.training.metrics import Metric

Collate = Callable[[Any], tuple[Tensor, Tensor]]
"""Function that makes the input and the target of a batch from what a data set returns for a list of indices."""


@runtime_checkable
class DrawnSamples(Protocol):
    """Samples that are partly drawn at random, anew in each epoch, such as those with a random lead time."""

    def start_epoch(self, epoch: int) -> None:
        """Draws the samples of an epoch, by its number only, so that a resumed run draws them again."""
        ...


class ShuffledBatches(Sampler[list[int]]):
    """Batches of a training epoch, shuffled by the seed and the epoch's number.

    Each process gets its equal share of every batch, so the batches do not depend on the number of processes; a share
    may come in equal parts, whose gradients are summed. Samples that do not fill a last batch are left out of an epoch.

    With repetitions (repeated augmentation), copy k of sample i is the number `i + k * num_samples`, for a data set
    that draws them differently. An epoch has as many batches as without repetitions, and so fewer different samples.
    The copies of a sample follow each other in the batch, and each of n processes and parts takes every n-th of them:
    with n at least the number of repetitions, none of them has two copies of the same sample.

    Args:
        num_samples: Number of samples of the data set.
        batch_size: Number of samples of a batch, over all processes.
        seed: Seed of the shuffles.
        process: Number of this process.
        num_processes: Number of processes that share the batches.
        part_size: Number of samples of a part; None: the share of a process is one part.
        num_repetitions: Number of copies of each sample.
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
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.seed = seed
        self.process = process
        self.num_processes = num_processes
        self.num_parts = 1 if part_size is None else share // part_size
        self.num_repetitions = num_repetitions
        self.epoch = 0
        self.first_batch = 0

    def start(self, epoch: int, first_batch: int = 0) -> None:
        """Sets the epoch of the next iteration, and its first batch."""
        self.epoch, self.first_batch = epoch, first_batch

    @property
    def num_batches(self) -> int:
        """Number of batches of a whole epoch."""
        return self.num_samples // self.batch_size

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
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the inputs and targets of batches on the device.

    Args:
        samples: Data set of inputs and targets.
        batches: Indices of the samples of each batch.
        collate: Makes a batch from what the data set returns for a list of indices.
        device: Device of inputs and targets. For a CUDA device they are copied from pinned memory.
        num_workers: Number of processes that read ahead; 0: this process reads.
        reads_ahead: Without such processes, a thread reads a batch while the one before is computed. Only for samples
            that draw nothing at random and are read as a batch (`__getitems__`).
    """
    is_pinned = torch.device(device).type == "cuda"
    if reads_ahead and num_workers == 0:
        for input, target in _read_by_thread(samples, batches, collate, is_pinned=is_pinned):
            yield input.to(device, non_blocking=True), target.to(device, non_blocking=True)
        return
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
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields batches in their order, of which the next one is being read, into pinned memory if so asked."""

    def read(chosen: list[int]) -> tuple[Tensor, Tensor]:
        input, target = collate(samples.__getitems__(chosen))
        return (input.pin_memory(), target.pin_memory()) if is_pinned else (input, target)

    with ThreadPoolExecutor(1, thread_name_prefix="smoe-batches") as pool:
        waiting: Future[tuple[Tensor, Tensor]] | None = None
        for indices in batches:
            following = pool.submit(read, indices)
            if waiting is not None:
                yield waiting.result()
            waiting = following
        if waiting is not None:
            yield waiting.result()


def num_samples(samples: Dataset[Any]) -> int:
    """Returns the length of a data set that has one."""
    if not isinstance(samples, Sized):
        raise TypeError(f"{type(samples).__name__} has no length")
    return len(samples)


@dataclass
class Task:
    """A model, its optimiser and loss, its data and its metrics.

    Attributes:
        model: Model that turns inputs into predictions.
        optimizer: Optimiser of the model's parameters.
        loss: Function of prediction and target that returns a scalar.
        metrics: Metrics of the validation split after each epoch and of the test split at the end.
        splits: Data sets named `train`, `validation` and, unless nothing is tested at the end, `test`; a sample is an
            input and a target.
        collate: Makes a batch from what the data set returns for a list of indices.
        seed: Seed of the shuffles.
        auxiliary_loss: Function of the model after its forward pass, added to the loss of each training step.
        begin_epoch: Called with the number of an epoch, from 1, before its first batch; also where a resumed run
            continues within an epoch.
        num_repetitions: Number of copies of each training sample in a batch, for samples that are drawn anew each time;
            see `ShuffledBatches`.
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
