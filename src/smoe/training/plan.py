"""How long to train and when to stop. Imports nothing heavy, so that recipes can hold it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from smoe.errors import suggest

Tracker = Literal["tensorboard"]
"""Packages that can record training."""
TRACKERS: tuple[Tracker, ...] = get_args(Tracker)

LOSS = "loss"
"""The training loss on the validation split, which every task can report as a metric."""


@dataclass(frozen=True)
class TrainingPlan:
    """Batches, schedule and stopping of a training run."""

    batch_size: int = 32  # Samples per optimiser step, over all processes together.
    evaluation_batch_size: int = 100  # Samples per evaluation step and process.
    max_epochs: int = 100  # Maximum number of epochs.
    # Validation metric that decides the schedule, the stopping and the choice of the best weights. `loss` is the
    # training loss on the validation split and needs no metric of its own.
    monitor: str = "loss"
    monitor_mode: Literal["max", "min"] = "min"  # Whether a larger (`max`) or a smaller (`min`) value is better.
    # Schedule of the learning rate: `plateau` lowers it when nothing improves, `cosine` lets it fall to `min_lr` along
    # half a wave, step by step, until `max_epochs`.
    schedule: Literal["plateau", "cosine"] = "plateau"
    warmup_epochs: int = 0  # Epochs of linear warm-up before the cosine.
    warmup_start: float = 0.01  # Share of the learning rate in the first step of these epochs.
    plateau_patience: int = 10  # Epochs without improvement before the learning rate falls.
    plateau_factor: float = 0.1  # Factor of the learning rate when it falls.
    min_lr: float = 0.0  # Lowest learning rate of the schedule.
    min_delta: float = 0.0  # Minimum change of the monitored metric that counts as an improvement.
    early_stop_patience: int = 20  # Epochs without improvement after which the run ends.
    stop_at: float | None = None  # Value of the monitored metric that ends the run; None for no such value.
    precision: Literal["no", "bf16", "fp16"] = "no"  # `no` (float32), `bf16` or `fp16` autocast.
    device: Literal["auto", "cpu"] = "auto"  # `auto` uses an accelerator if there is one.
    num_threads: int | None = None  # Torch's threads on a CPU; None keeps torch's choice.
    num_workers: int = 0  # Processes that read batches ahead of the model; 0: the training process reads them.

    def __post_init__(self) -> None:
        for names, lowest in (
            (("batch_size", "evaluation_batch_size", "max_epochs", "early_stop_patience", "num_threads"), 1),
            (("plateau_patience", "num_workers", "warmup_epochs", "min_lr", "min_delta"), 0),
        ):
            for name in names:
                value = getattr(self, name)
                # `not >=` refuses NaN too.
                if value is not None and not value >= lowest:
                    raise ValueError(f"{name} must be at least {lowest}, got {value}")
        if not 0.0 < self.plateau_factor < 1.0:
            raise ValueError(f"plateau_factor must be between 0 and 1, got {self.plateau_factor}")
        if self.warmup_epochs and self.schedule != "cosine":
            raise ValueError(f"warmup_epochs belongs to schedule='cosine', but schedule is {self.schedule!r}")
        if self.warmup_epochs >= self.max_epochs:
            raise ValueError(f"warmup_epochs must be below max_epochs, {self.max_epochs}, got {self.warmup_epochs}")
        if not 0.0 < self.warmup_start <= 1.0:
            raise ValueError(f"warmup_start must be above 0 and at most 1, got {self.warmup_start}")


def resumable_fields(plan: TrainingPlan) -> frozenset[str]:
    """Returns the fields of a recipe that a resumed run may change, because they do not change what was computed."""
    names = {"evaluation_batch_size", "num_threads", "num_workers", "device"}
    if plan.schedule == "plateau":
        # A cosine depends on it.
        names.add("max_epochs")
    return frozenset(f"training.{name}" for name in names)


@dataclass
class Stopping:
    """Finds the best monitored value, its epoch, and the end of a run."""

    plan: TrainingPlan
    best: float | None = None
    best_epoch: int = 0

    def observe(self, epoch: int, value: float) -> bool:
        """Takes the value of an epoch; returns whether it is the best so far, which no value that is not finite is."""
        if not math.isfinite(value):
            return False
        margin = self.plan.min_delta if self.plan.monitor_mode == "max" else -self.plan.min_delta
        if self.best is not None and not self._is_better(value, self.best + margin):
            return False
        self.best, self.best_epoch = value, epoch
        return True

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

    def _is_better(self, value: float, than: float) -> bool:
        return value > than if self.plan.monitor_mode == "max" else value < than


def check_monitor(plan: TrainingPlan, names: Iterable[str]) -> None:
    """Refuses a plan whose metric is neither among the names nor `loss`, with the nearest one."""
    known = sorted({*names, LOSS})
    if plan.monitor not in known:
        raise ValueError(f"monitor is {plan.monitor!r}, but no metric has this name; {suggest(plan.monitor, known)}")
