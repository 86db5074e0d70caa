"""What the loop trains: a model, its optimiser, loss and data; batches, and metrics summed over them and processes."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import InitProcessGroupKwargs, gather_object
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler

from smoe._files import read_ahead
from smoe.errors import leaving_signals
from smoe.training.plan import TrainingPlan
from smoe.training.run_directory import CheckpointError, State

Batch = tuple[Tensor, Tensor]
Collate = Callable[[Any], Batch]
"""Makes the input and the target of a batch from what a data set returns for a list of indices."""


class Metric(ABC):
    """A stateless metric: `MetricSums` adds up the totals of all batches and processes, and reduces them once."""

    names: tuple[str, ...]  # of the values that it reports
    num_totals: int = 2  # sums for each name, with the count; two for a mean

    @abstractmethod
    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Returns the sums of the statistics and, last, the number of pixels in one batch, for each name.

        Without gradient, float64, on the prediction's device, `(len(names), num_totals)`.
        """

    def reduction(self, sums: Sequence[float], count: float) -> float:
        """Returns the value that is reported for sums of the statistics over `count` pixels: the mean of the first."""
        return sums[0] / count

    def values(self, totals: Tensor) -> dict[str, float]:
        """Returns the value of each name for totals that were added up over all batches; a count of 0 is refused."""
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
    return tuple(name for metric in metrics for name in metric.names)


class MetricSums:
    """The totals of several metrics in one float64 tensor, so that processes are joined by a single reduction."""

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
        for metric, total in self._of_metrics(self._totals):
            total += metric.totals(prediction, target).to(total.device)

    def values(self, sum_over_processes: Callable[[Tensor], Tensor] | None = None) -> dict[str, float]:
        """The value of each name over all batches, of all processes if there is a function that adds them up."""
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

    @torch.no_grad()
    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        dtype = torch.promote_types(prediction.dtype, torch.float32)
        total = self.loss(prediction.to(dtype), target).double() * len(prediction)
        return torch.stack([total, total.new_tensor(float(len(prediction)))])[None]


@dataclass
class Task:
    """A model, its optimiser and loss, its data and its metrics.

    The splits are data sets named `train`, `validation` and, unless nothing is tested at the end, `test`; a sample is
    an input and a target. If the training set has a method `start_epoch`, it is called with the number of an epoch
    before its first batch, to draw new samples; it must depend on that number only.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[Tensor, Tensor], Tensor]
    metrics: Sequence[Metric]  # of the validation split after each epoch and of the test split at the end
    splits: Mapping[str, Any]
    collate: Collate
    seed: int  # of the shuffles
    auxiliary_loss: Callable[[nn.Module], Tensor] | None = None  # of the model after its pass, added to the loss
    regions: Tensor | None = None  # number of the known region of each pixel `(H, W)`, compared with the routing
    compares_routing: bool = True  # whether the routing is compared with single convolutions in the end
    reads_ahead: bool = False  # whether a thread reads training batches, for samples that draw nothing at random


class ShuffledBatches(Sampler[list[int]]):
    """Batches of a training epoch, shuffled by the seed and the epoch's number.

    Each process gets its equal share of every batch, so the batches do not depend on the number of processes. Samples
    that do not fill a last batch are left out of an epoch.
    """

    def __init__(self, num_samples: int, batch_size: int, seed: int, process: int = 0, num_processes: int = 1) -> None:
        if batch_size % num_processes:
            raise ValueError(f"a batch of {batch_size} cannot be shared equally by {num_processes} processes")
        if num_samples < batch_size:
            raise ValueError(f"{num_samples} samples do not fill one batch of {batch_size}; lower the batch size")
        self.num_samples, self.batch_size, self.seed = num_samples, batch_size, seed
        self.process, self.num_processes = process, num_processes
        self.num_batches = num_samples // batch_size
        self.epoch, self.first_batch = 0, 0

    def start(self, epoch: int, first_batch: int = 0) -> None:
        self.epoch, self.first_batch = epoch, first_batch

    def __len__(self) -> int:
        return self.num_batches - self.first_batch

    def __iter__(self) -> Iterator[list[int]]:
        # The mixing keeps (0, 1) and (1, 0) apart.
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(self.num_samples, generator=generator)
        for batch in range(self.first_batch, self.num_batches):
            samples = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            yield samples[self.process :: self.num_processes].tolist()


def load_batches(
    samples: Dataset[Any],
    batches: Iterable[list[int]],
    collate: Collate,
    device: torch.device | str,
    num_workers: int = 0,
    *,
    reads_ahead: bool = False,
) -> Iterator[Batch]:
    """Yields the inputs and targets of batches on the device, read by this process or by `num_workers` others.

    With `reads_ahead`, and no such processes, a thread reads a batch while the one before is computed: for samples that
    draw nothing at random and are read as a batch (`__getitems__`).
    """
    is_pinned = torch.device(device).type == "cuda"
    if reads_ahead and num_workers == 0:

        def read_batch(chosen: list[int]) -> Batch:
            input, target = collate(cast(Any, samples).__getitems__(chosen))
            return (input.pin_memory(), target.pin_memory()) if is_pinned else (input, target)

        read = (batch for _, batch in read_ahead(read_batch, batches))
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


def predict(
    accelerator: Accelerator, model: nn.Module, task: Task, split: str, plan: TrainingPlan
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the prediction and the target of each batch of a split, in order; of several processes, each its share.

    The model is put into evaluation mode and stays in it. Predictions have no gradient.
    """
    samples = task.splits[split]
    numbers = range(accelerator.process_index, len(samples), accelerator.num_processes)
    batches = BatchSampler(numbers, plan.evaluation_batch_size, drop_last=False)
    model.eval()
    for input, target in load_batches(samples, batches, task.collate, accelerator.device, plan.num_workers):
        # Not around the loop: the caller's code between two batches keeps its own mode.
        with torch.no_grad():
            prediction = model(input)
        yield prediction, target


def sum_over_processes(accelerator: Accelerator, tensor: Tensor) -> Tensor:
    return cast(Tensor, accelerator.reduce(tensor, reduction="sum"))


def evaluate(
    accelerator: Accelerator, model: nn.Module, task: Task, split: str, plan: TrainingPlan, metrics: Sequence[Metric]
) -> dict[str, float]:
    sums = MetricSums(metrics, accelerator.device)
    for pair in predict(accelerator, model, task, split, plan):
        sums.add(*pair)
    return sums.values(lambda totals: sum_over_processes(accelerator, totals))


Value = TypeVar("Value")

# Longer than any process waits for another during training, such as for the writer of a checkpoint.
_TIMEOUT = timedelta(minutes=10)


def make_accelerator(plan: TrainingPlan) -> Accelerator:
    """Returns an accelerator for a plan, whatever an earlier run of this process used."""
    # accelerate keeps the precision of the first accelerator for all later ones, and refuses another.
    AcceleratorState._reset_state()
    return Accelerator(
        cpu=plan.device == "cpu",
        mixed_precision=plan.precision,
        kwargs_handlers=[InitProcessGroupKwargs(timeout=_TIMEOUT)],
    )


def leave_processes() -> None:
    """Ends the group of processes that a launcher started. Call it when their work is done and its objects are deleted.

    If the interpreter ended before a thread of the group that holds a tensor, the process would abort.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return
    gc.collect()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def from_main_process(accelerator: Accelerator, work: Callable[[], Value]) -> Value:
    """Returns what process 0 returns, in all processes; raises its `CheckpointError` in all of them."""
    if accelerator.num_processes == 1:
        return work()
    message: list[Any] = [None, None]
    if accelerator.is_main_process:
        try:
            message[0] = work()
        except CheckpointError as error:
            message[1] = str(error)
    torch.distributed.broadcast_object_list(message, src=0)
    if message[1] is not None:
        raise CheckpointError(message[1])
    return message[0]


def gather_process_states(accelerator: Accelerator, loss_total: Tensor) -> list[State]:
    """Returns random numbers and share of the loss of all processes, in their order. Every process must call it."""
    device = accelerator.device
    state: State = {
        "torch_rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "loss_total": float(loss_total),
    }
    return gather_object([state])


def restore_process_state(accelerator: Accelerator, states: Sequence[State], seed: int) -> float:
    """Restores the random numbers of this process, and returns its share of the loss.

    With as many processes as when the run was stopped, a resumed run equals one that was not stopped. With another
    number, each batch still has the same samples, and the mean loss of the epoch is kept, but gradients are summed in
    another order, and a process that is new draws random numbers of its own, by `seed`: see
    tests/distributed/test_resume.py.
    """
    process, device = accelerator.process_index, accelerator.device
    if process < len(states):
        state = states[process]
        torch.set_rng_state(state["torch_rng"])
        if device.type == "cuda" and state["cuda_rng"] is not None:
            torch.cuda.set_rng_state(state["cuda_rng"], device)
    else:
        torch.manual_seed(seed)
    if len(states) == accelerator.num_processes:
        return states[process]["loss_total"]
    return sum(state["loss_total"] for state in states) / len(states)
