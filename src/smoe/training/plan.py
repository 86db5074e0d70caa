"""How long to train and when to stop. Imports nothing heavy, so that recipes can hold it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from smoe.errors import suggest

Tracker = Literal["tensorboard", "mlflow", "wandb"]
"""Packages that can record a training."""
TRACKERS: tuple[Tracker, ...] = get_args(Tracker)

LOSS = "loss"
"""The training loss on the validation split, which every task can report as a metric."""


@dataclass(frozen=True)
class TrainingPlan:
    """Batches, schedule and stopping of a training run.

    Attributes:
        batch_size: Number of samples per optimiser step, over all processes together.
        part_size: Number of samples that go through the model at once; the gradients of the parts of a batch are
            summed. Batch normalisation sees a part. None: the share of a process is one part.
        evaluation_batch_size: Number of samples per evaluation step and process.
        max_epochs: Number of epochs after which the run ends, unless something ends it before.
        monitor: Validation metric that decides the schedule, the stopping and the choice of the best weights. `loss` is
            the training loss on the validation split and needs no metric of its own.
        monitor_mode: Whether a larger (`max`) or a smaller (`min`) value is better.
        schedule: Schedule of the learning rate: `plateau` lowers it when nothing improves, `cosine` lets it fall to
            `min_lr` along half a wave, epoch by epoch, until `max_epochs`.
        warmup_epochs: Epochs at the start of the cosine in which the learning rate rises in equal steps.
        warmup_start: Share of the learning rate in the first of these epochs.
        plateau_patience: Epochs without improvement before the learning rate falls.
        plateau_factor: Factor of the learning rate when it falls.
        min_lr: Lowest learning rate of the schedule.
        min_delta: A change of the monitored value that is not larger than this is no improvement, neither for the
            schedule, nor for the stopping, nor for the choice of the best weights.
        early_stop_patience: Epochs without improvement after which the run ends.
        stop_at: Value of the monitored metric that ends the run, because nothing is left to learn. None: no such value.
        average_every: Evaluate and store an exponential moving average of the weights and buffers, which is updated
            after every so many steps of an epoch, the first one included; until the warm-up is over, it is a copy of
            them. None: evaluate and store the weights themselves.
        average_decay: Share of the average that is kept, for one sample and one epoch, as in the published recipe; the
            share that is replaced is multiplied by the samples between two updates over `max_epochs`.
        precision: `no` (float32), `bf16` or `fp16` autocast.
        device: `auto` uses an accelerator if there is one.
        num_threads: Number of torch's threads on a CPU; None keeps torch's choice.
        num_workers: Number of processes that read batches ahead of the model; 0: the training process reads them.
        sharding: How several processes hold the model. `none`: each holds all of it. `full`: each holds a part of every
            parameter, of its gradient and of what the optimiser keeps for it (FSDP2), which takes less memory and sends
            more. The results differ by rounding only.
    """

    batch_size: int = 32
    part_size: int | None = None
    evaluation_batch_size: int = 100
    max_epochs: int = 100
    monitor: str = "loss"
    monitor_mode: Literal["max", "min"] = "min"
    schedule: Literal["plateau", "cosine"] = "plateau"
    warmup_epochs: int = 0
    warmup_start: float = 0.01
    plateau_patience: int = 10
    plateau_factor: float = 0.1
    min_lr: float = 0.0
    min_delta: float = 0.0
    early_stop_patience: int = 20
    stop_at: float | None = None
    average_every: int | None = None
    average_decay: float = 0.99998
    precision: Literal["no", "bf16", "fp16"] = "no"
    device: Literal["auto", "cpu"] = "auto"
    num_threads: int | None = None
    num_workers: int = 0
    sharding: Literal["none", "full"] = "none"

    def __post_init__(self) -> None:
        for name in ("batch_size", "evaluation_batch_size", "max_epochs", "early_stop_patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("part_size", "average_every", "num_threads"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("plateau_patience", "num_workers", "warmup_epochs"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if not 0.0 < self.plateau_factor < 1.0:
            raise ValueError(f"plateau_factor must be between 0 and 1, got {self.plateau_factor}")
        for name in ("min_lr", "min_delta"):
            # `not >=` refuses NaN too.
            if not getattr(self, name) >= 0.0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.warmup_epochs and self.schedule != "cosine":
            raise ValueError(f"warmup_epochs belongs to schedule='cosine', but schedule is {self.schedule!r}")
        if self.warmup_epochs >= self.max_epochs:
            raise ValueError(f"warmup_epochs must be below max_epochs, {self.max_epochs}, got {self.warmup_epochs}")
        if not 0.0 < self.warmup_start <= 1.0:
            raise ValueError(f"warmup_start must be above 0 and at most 1, got {self.warmup_start}")
        if not 0.0 <= self.average_decay < 1.0:
            raise ValueError(f"average_decay must be in [0, 1), got {self.average_decay}")


def resumable_fields(plan: TrainingPlan) -> frozenset[str]:
    """Returns the fields of a recipe that a resumed run may change, because they do not change what was computed.

    `max_epochs` is one of them unless the schedule or the average of the weights depends on it.

    Args:
        plan: Plan of the run that is resumed.
    """
    names = {"evaluation_batch_size", "num_threads", "num_workers", "device", "sharding"}
    if plan.schedule == "plateau" and plan.average_every is None:
        names.add("max_epochs")
    return frozenset(f"training.{name}" for name in names)


@dataclass
class Stopping:
    """Finds the best monitored value and the end of a run.

    Attributes:
        plan: Plan of the run.
        best: Best value so far; None before the first.
        best_epoch: Epoch of the best value.
    """

    plan: TrainingPlan
    best: float | None = None
    best_epoch: int = 0

    def observe(self, epoch: int, value: float) -> bool:
        """Takes the value of an epoch; returns whether it is the best so far. A value that is not finite is never."""
        if not math.isfinite(value):
            return False
        if self.best is None or self._is_improvement(value, self.best):
            self.best, self.best_epoch = value, epoch
            return True
        return False

    def reason(self, epoch: int) -> str | None:
        """Returns why the run ends after this epoch, or None if it continues."""
        plan = self.plan
        if plan.stop_at is not None and self.best is not None and not self._is_better(plan.stop_at, self.best):
            return f"{plan.monitor} reached {self.best:g}"
        if epoch - self.best_epoch >= plan.early_stop_patience:
            return f"no improvement for {plan.early_stop_patience} epochs"
        if epoch >= plan.max_epochs:
            return "1 epoch done" if plan.max_epochs == 1 else f"{plan.max_epochs} epochs done"
        return None

    def _is_improvement(self, value: float, than: float) -> bool:
        margin = self.plan.min_delta
        return self._is_better(value, than + margin if self.plan.monitor_mode == "max" else than - margin)

    def _is_better(self, value: float, than: float) -> bool:
        return value > than if self.plan.monitor_mode == "max" else value < than


class MonitorError(ValueError):
    """A plan monitors a metric that does not exist."""


def check_monitor(plan: TrainingPlan, names: Iterable[str]) -> None:
    """Checks that the metric of a plan exists.

    Args:
        plan: Plan whose `monitor` is checked.
        names: Names of the metrics; see `smoe.training.metrics.metric_names`.

    Raises:
        MonitorError: If no metric has the name; with the nearest one.
    """
    known = sorted({*names, LOSS})
    if plan.monitor not in known:
        raise MonitorError(f"monitor is {plan.monitor!r}, but no metric has this name; {suggest(plan.monitor, known)}")
