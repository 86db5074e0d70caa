"""Learning rate schedule, weight average, predictions and metrics of a model, and records of its routing."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import Dataset, default_collate

from smoe.diagnostics import RoutingGain, RoutingWatch, routing_gains
from smoe.nn._shared_parameters import local_part
from smoe.training.distribution import Distribution, sum_over_processes
from smoe.training.plan import TrainingPlan
from smoe.training.task import Collate, Metric, MetricSums, OrderedBatches, Task, load_batches, num_samples


def make_schedule(optimizer: torch.optim.Optimizer, plan: TrainingPlan) -> ReduceLROnPlateau | CosineSchedule:
    """Return the schedule of a plan; `step(monitored)` sets the learning rates after an epoch."""
    if plan.schedule == "cosine":
        return CosineSchedule(optimizer, plan)
    # Without a margin in the plan, torch's own: a hundredth of a percent.
    margin: dict[str, Any] = {"threshold": plan.min_delta, "threshold_mode": "abs"} if plan.min_delta > 0.0 else {}
    return ReduceLROnPlateau(
        optimizer,
        mode=plan.monitor_mode,
        factor=plan.plateau_factor,
        patience=plan.plateau_patience,
        min_lr=plan.min_lr,
        **margin,
    )


class CosineSchedule:
    """Linear warm-up, then half a cosine wave. The rate depends on the number of epochs only.

    (torch's schedules compute the rate from that of the epoch before, and warn about a run that is resumed at the end
    of an epoch.)
    """

    def __init__(self, optimizer: torch.optim.Optimizer, plan: TrainingPlan) -> None:
        self._optimizer, self._plan = optimizer, plan
        self._peaks = [group["lr"] for group in optimizer.param_groups]
        self._set(0)

    def step(self, monitored: float, /) -> None:
        """Set the rates of the next epoch; the monitored metric has no effect."""
        del monitored
        self._set(self._num_epochs + 1)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {"num_epochs": self._num_epochs}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Continue from a `state_dict`."""
        self._set(state["num_epochs"])

    def _set(self, num_epochs: int) -> None:
        self._num_epochs = num_epochs
        for group, peak in zip(self._optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = self._rate(peak)

    def _rate(self, peak: float) -> float:
        plan, epoch = self._plan, self._num_epochs
        if epoch < plan.warmup_epochs:
            return peak * (plan.warmup_start + (1.0 - plan.warmup_start) * epoch / plan.warmup_epochs)
        share = (epoch - plan.warmup_epochs) / (plan.max_epochs - plan.warmup_epochs)
        return plan.min_lr + (peak - plan.min_lr) * (1.0 + math.cos(math.pi * share)) / 2.0


class WeightAverage:
    """Exponential moving average of the parameters and buffers of a model, updated every few steps.

    Until the warm-up is over, it is a copy of the weights at its last update. The scores of gates are averaged like any
    parameter; the choices are those of the averaged scores. Integers, such as counters and codes, are copied. What only
    one of the two models has, such as the state of a rule that is not in force, is left alone.

    The model at the start is copied, so nothing may be wrapped around it yet.
    """

    def __init__(self, model: nn.Module, plan: TrainingPlan) -> None:
        assert plan.average_every is not None
        self._every, self._num_warmup_epochs = plan.average_every, plan.warmup_epochs
        self._share = 1.0 - rescaled_decay(plan)
        self.has_begun = False
        self.model = copy.deepcopy(model)

    def observe(self, model: nn.Module, epoch: int, num_steps: int) -> None:
        """Take in the weights after step `num_steps` of an epoch, if it is time."""
        if (num_steps - 1) % self._every:
            return
        self._update(model, 1.0 if not self.has_begun else self._share)
        # The first update after the warm-up copies the weights.
        self.has_begun = epoch > self._num_warmup_epochs

    @torch.no_grad()
    def _update(self, model: nn.Module, share: float) -> None:
        new = dict(_tensors(model))
        pairs = [(value, new[name]) for name, value in _tensors(self.model) if name in new]
        for average, value in pairs:
            if share == 1.0 or not average.is_floating_point():
                average.copy_(value)
        if share < 1.0:
            floating = [(average, value) for average, value in pairs if average.is_floating_point()]
            torch._foreach_lerp_([average for average, _ in floating], [value for _, value in floating], share)


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers; of a sharded parameter, the part of this process."""
    for name, parameter in model.named_parameters():
        yield name, local_part(parameter)
    yield from model.named_buffers()


def rescaled_decay(plan: TrainingPlan) -> float:
    """Return the share of the average that is kept at an update; larger for longer runs and smaller batches."""
    assert plan.average_every is not None
    new = (1.0 - plan.average_decay) * plan.batch_size * plan.average_every / plan.max_epochs
    return 1.0 - min(1.0, new)


def predict(
    model: nn.Module,
    samples: Dataset[Any],
    batch_size: int,
    *,
    collate: Collate = default_collate,
    device: torch.device | str | None = None,
    num_workers: int = 0,
    process: int = 0,
    num_processes: int = 1,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the prediction and the target of each batch of a data set, in the order of its samples.

    The model is put into evaluation mode and stays in it. Predictions have no gradient. If several processes share the
    work, each sample is predicted by one of them. The device is that of the model if not given.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if device is None:
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    batches = OrderedBatches(num_samples(samples), batch_size, process, num_processes)
    model.eval()
    for input, target in load_batches(samples, batches, collate, device, num_workers):
        # Not around the loop: the caller's code between two batches keeps its own mode.
        with torch.no_grad():
            prediction = model(input)
        yield prediction, target


def evaluate(
    accelerator: Accelerator,
    model: nn.Module,
    samples: Dataset[Any],
    metrics: Sequence[Metric],
    collate: Collate,
    batch_size: int,
    num_workers: int = 0,
) -> dict[str, float]:
    """Return the values of all metrics over all processes. The model stays in evaluation mode."""
    sums = MetricSums(metrics, accelerator.device)
    for prediction, target in predict(
        model,
        samples,
        batch_size,
        collate=collate,
        device=accelerator.device,
        num_workers=num_workers,
        process=accelerator.process_index,
        num_processes=accelerator.num_processes,
    ):
        sums.add(prediction, target)
    return sums.values(partial(sum_over_processes, accelerator))


class EvaluatedModel:
    """Makes the model to evaluate from the one that trains.

    Must be made before the model is distributed: a wrapped forward, copied, would still call the original.
    """

    def __init__(self, task: Task, plan: TrainingPlan, accelerator: Accelerator) -> None:
        self._task, self._accelerator = task, accelerator
        device = accelerator.device
        self.average = None if plan.average_every is None else WeightAverage(task.model.to(device), plan)
        # A model for another grid is made from a whole one.
        needs_twin = task.for_evaluation is not None and (self.average is None or plan.sharding == "full")
        self._twin = copy.deepcopy(task.model).to(device) if needs_twin else None

    @property
    def weights(self) -> nn.Module:
        """The model whose weights are stored as the best: the average, or the one that trains."""
        return self._task.model if self.average is None else self.average.model

    def distribute(self, distribution: Distribution) -> None:
        """Distribute the average as the model that trains."""
        if self.average is not None:
            self.average.model = distribution.add(self.average.model)

    def get(self, distribution: Distribution) -> nn.Module:
        """Return the model to evaluate. Every process must call this method."""
        weights = self.weights
        if self._accelerator.num_processes > 1:
            # The processes differ in buffers such as running means.
            for buffer in weights.buffers():
                torch.distributed.broadcast(buffer, src=0)
        if self._task.for_evaluation is None:
            return distribution.model if self.average is None else weights
        if self._twin is None:
            return self._task.for_evaluation(weights)
        self._twin.load_state_dict(distribution.whole_state_of(weights))
        return self._task.for_evaluation(self._twin)


# Largest number of validation samples of a process with which the layers are compared with convolutions.
_MOST_SAMPLES = 32


def routing_record(
    watch: RoutingWatch,
    task: Task,
    accelerator: Accelerator,
    distribution: Distribution,
    batch: tuple[Tensor, Tensor],
) -> dict[str, float]:
    """Return the values `routing/...` of an epoch over all processes, which must all call it; none without gates."""
    with distribution.whole(task.model):
        values = watch.observe(task.model)
    with accelerator.autocast():
        measured = watch.measure(task.model, task.loss, *batch)
    distribution.end_evaluation(task.model)
    if not measured:
        return values
    numbers = torch.tensor(list(measured.values()), dtype=torch.float64, device=accelerator.device)
    means = sum_over_processes(accelerator, numbers) / accelerator.num_processes
    measured = dict(zip(measured, means.tolist(), strict=True))
    return {**values, **measured}


def gains_of_routing(
    task: Task, model: nn.Module, accelerator: Accelerator, distribution: Distribution, most_samples: int
) -> list[RoutingGain]:
    """Return what the routing of each layer is worth on the validation split, over all processes; all must call it.

    `most_samples` is the number of samples of a training pass of a process, whose memory there is.
    """
    samples = task.splits["validation"]
    # As many for each process: all must make the same passes.
    num_taken = min(_MOST_SAMPLES, most_samples, num_samples(samples) // accelerator.num_processes)
    if num_taken == 0:
        return []
    spread = torch.linspace(0, num_samples(samples) - 1, num_taken * accelerator.num_processes).long().tolist()
    chosen = spread[accelerator.process_index :: accelerator.num_processes]
    ((input, target),) = load_batches(samples, [chosen], task.collate, accelerator.device)
    with accelerator.autocast():
        gains = routing_gains(model, task.loss, input, target)
    distribution.end_evaluation(model)
    if accelerator.num_processes == 1 or not gains:
        return gains
    numbers: list[list[float]] = []
    for gain in gains:
        n, difference = gain.num_samples, gain.loss_of_convolution - gain.loss
        squares = n * difference**2 + (n * (n - 1) * gain.standard_error**2 if n > 1 else 0.0)
        numbers.append([n, n * gain.loss, n * gain.loss_of_convolution, squares])
    sums = sum_over_processes(accelerator, torch.tensor(numbers, dtype=torch.float64, device=accelerator.device))
    return [
        _together(gain, int(n), loss / n, convolution / n, squares)
        for gain, (n, loss, convolution, squares) in zip(gains, sums.tolist(), strict=True)
    ]


def _together(gain: RoutingGain, n: int, loss: float, convolution: float, squares: float) -> RoutingGain:
    """The comparison over n samples of all processes, by the sum of the squares of their differences."""
    variance = max(0.0, squares - n * (convolution - loss) ** 2) / (n - 1)
    return replace(
        gain, loss=loss, loss_of_convolution=convolution, standard_error=math.sqrt(variance / n), num_samples=n
    )
