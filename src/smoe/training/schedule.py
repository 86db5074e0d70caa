"""The learning rate from epoch to epoch: lowered on a plateau, or along half a wave after a warm-up."""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from smoe.training.plan import TrainingPlan


class Schedule(Protocol):
    """Sets the learning rate of every parameter group after each epoch."""

    def step(self, monitored: float, /) -> None:
        """An epoch has ended, with this value of the monitored metric."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        ...

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Goes on from `state_dict`."""
        ...


def make_schedule(optimizer: torch.optim.Optimizer, plan: TrainingPlan) -> Schedule:
    """The schedule of a plan, for an optimiser with the learning rates it is to start with, or to warm up to."""
    if plan.schedule == "cosine":
        return CosineSchedule(optimizer, plan)
    # Without a margin of the plan's own, torch's: a hundredth of a percent.
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
    """A rise in equal steps from a share of the learning rate to all of it, then half a wave down to the lowest.

    A function of the number of epochs alone: torch's own, which change the rate from one epoch to the next, take a run
    that is resumed at the end of an epoch for a mistake.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, plan: TrainingPlan) -> None:
        self._optimizer, self._plan = optimizer, plan
        self._peaks = [group["lr"] for group in optimizer.param_groups]
        self._num_epochs = 0
        self._set()

    def step(self, monitored: float, /) -> None:
        """An epoch has ended, whatever the monitored metric."""
        del monitored
        self._num_epochs += 1
        self._set()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {"num_epochs": self._num_epochs}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Goes on from `state_dict`."""
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
