"""How long to train and when to stop. Imports nothing heavy, so that recipes can hold it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TrainingPlan:
    """Batches, schedule and stopping of a training run.

    Attributes:
        batch_size: samples per optimiser step, over all processes together.
        part_size: samples that go through the model at once; the gradients of the parts of a batch are summed. Batch
            normalisation sees a part. None: a process's share of the batch is one part.
        evaluation_batch_size: samples per evaluation step and process.
        max_epochs: end of the run, if nothing ends it before.
        monitor: validation metric that the schedule, the stopping and the choice of the best weights look at.
        monitor_mode: whether a larger (`max`) or a smaller (`min`) value is better.
        schedule: of the learning rate: `plateau` lowers it when nothing improves, `cosine` lets it fall to 0 along half
            a wave, epoch by epoch, until `max_epochs`.
        warmup_epochs: of the cosine: epochs in which the learning rate rises in equal steps.
        warmup_start: share of the learning rate that the first of them has.
        plateau_patience: epochs without improvement that are waited for before the learning rate falls.
        plateau_factor: what the learning rate is multiplied by then.
        min_lr: the learning rate falls no lower than this.
        min_delta: a change of the monitored value that is not larger is no improvement: neither for the schedule, nor
            for the stopping, nor for the choice of the best weights.
        early_stop_patience: epochs without improvement after which the run ends.
        stop_at: value of the monitored metric that ends the run: nothing is left to learn. None: no such value.
        average_every: evaluate and keep an exponential moving average of the weights and buffers, which takes them in
            after every so many steps of an epoch, the first one among them; it is theirs until the warm-up is over.
            None: the weights themselves.
        average_decay: share of the average that stays, for one sample and one epoch, as in the published recipe; what
            is new in it is multiplied by the samples between two updates over `max_epochs`.
        precision: `no` (float32), `bf16` or `fp16` autocast.
        device: `auto` takes an accelerator if there is one.
        num_threads: of torch, on a CPU; None leaves torch's choice.
        num_workers: processes that read batches ahead of the model; 0: the training process reads them itself.
    """

    batch_size: int = 32
    part_size: int | None = None
    evaluation_batch_size: int = 100
    max_epochs: int = 150
    monitor: str = "within_1_percent"
    monitor_mode: Literal["max", "min"] = "max"
    schedule: Literal["plateau", "cosine"] = "plateau"
    warmup_epochs: int = 0
    warmup_start: float = 0.01
    plateau_patience: int = 15
    plateau_factor: float = 0.1
    min_lr: float = 0.0
    min_delta: float = 0.0
    early_stop_patience: int = 30
    stop_at: float | None = 100.0
    average_every: int | None = None
    average_decay: float = 0.99998
    precision: Literal["no", "bf16", "fp16"] = "no"
    device: Literal["auto", "cpu"] = "auto"
    num_threads: int | None = None
    num_workers: int = 0

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


@dataclass
class Stopping:
    """Watches the monitored value: is it the best so far, and is it time to stop?

    Attributes:
        best: best value seen; None before the first.
        best_epoch: the epoch it was seen in.
    """

    plan: TrainingPlan
    best: float | None = None
    best_epoch: int = 0

    def observe(self, epoch: int, value: float) -> bool:
        """Takes the value of an epoch; returns whether it is the best so far. NaN is never the best."""
        is_first = self.best is None and not math.isnan(value)
        if is_first or (self.best is not None and self._is_improvement(value, self.best)):
            self.best, self.best_epoch = value, epoch
            return True
        return False

    def reason(self, epoch: int) -> str | None:
        """Why the run is to end after this epoch, or None."""
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
