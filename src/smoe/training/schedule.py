"""Schedules of the learning rate: lowered on a plateau, or along half a cosine wave after a warm-up."""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from smoe.training.plan import TrainingPlan


class Schedule(Protocol):
    """Sets the learning rate of every parameter group after each epoch."""

    def step(self, monitored: float, /) -> None:
        """Called after an epoch with the value of the monitored metric."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Returns what a resumed run needs."""
        ...

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Continues from a `state_dict`."""
        ...


def make_schedule(optimizer: torch.optim.Optimizer, plan: TrainingPlan) -> Schedule:
    """Returns the schedule of a plan.

    Args:
        optimizer: Optimiser with the learning rates of the start, or of the end of a warm-up.
        plan: Plan of the run.
    """
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
    """Raises the learning rate in equal steps from a share of it, then lowers it along half a cosine wave.

    The rate depends on the number of epochs only. (torch's schedules change the rate from one epoch to the next, and
    warn about a run that is resumed at the end of an epoch.)
    """

    def __init__(self, optimizer: torch.optim.Optimizer, plan: TrainingPlan) -> None:
        self._optimizer, self._plan = optimizer, plan
        self._peaks = [group["lr"] for group in optimizer.param_groups]
        self._num_epochs = 0
        self._set()

    def step(self, monitored: float, /) -> None:
        """Called after an epoch; the monitored metric has no effect."""
        del monitored
        self._num_epochs += 1
        self._set()

    def state_dict(self) -> dict[str, Any]:
        """Returns what a resumed run needs."""
        return {"num_epochs": self._num_epochs}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Continues from a `state_dict`."""
        self._num_epochs = state["num_epochs"]
        self._set()

    def _set(self) -> None:
        for group, peak in zip(self._optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = self._rate(peak)

    def _rate(self, peak: float) -> float:
        plan, epoch = self._plan, self._num_epochs
        if epoch < plan.warmup_epochs:
            return peak * (plan.warmup_start + (1.0 - plan.warmup_start) * epoch / plan.warmup_epochs)
        share = (epoch - plan.warmup_epochs) / (plan.max_epochs - plan.warmup_epochs)
        return plan.min_lr + (peak - plan.min_lr) * (1.0 + math.cos(math.pi * share)) / 2.0
