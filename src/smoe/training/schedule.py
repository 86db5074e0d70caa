"""The learning rate from epoch to epoch: lowered on a plateau, or along half a wave after a warm-up."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, ReduceLROnPlateau, SequentialLR

from smoe.training.plan import TrainingPlan


class Schedule:
    """Sets the learning rate of every parameter group after each epoch.

    Args:
        optimizer: whose learning rates are those of the start, or of the end of the warm-up.
        plan: which schedule.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, plan: TrainingPlan) -> None:
        self._plateau = None if plan.schedule == "cosine" else _make_plateau(optimizer, plan)
        self._wave = _make_wave(optimizer, plan) if plan.schedule == "cosine" else None

    def step(self, monitored: float) -> None:
        """An epoch has ended, with this value of the monitored metric."""
        if self._plateau is not None:
            self._plateau.step(monitored)
        if self._wave is not None:
            self._wave.step()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        scheduler = self._plateau or self._wave
        assert scheduler is not None
        return scheduler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state_dict`."""
        scheduler = self._plateau or self._wave
        assert scheduler is not None
        scheduler.load_state_dict(state)


def _make_plateau(optimizer: torch.optim.Optimizer, plan: TrainingPlan) -> ReduceLROnPlateau:
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


def _make_wave(optimizer: torch.optim.Optimizer, plan: TrainingPlan) -> LRScheduler:
    num_warmup = plan.warmup_epochs
    wave = CosineAnnealingLR(optimizer, T_max=plan.max_epochs - num_warmup, eta_min=plan.min_lr)
    if not num_warmup:
        return wave
    warmup = LinearLR(optimizer, start_factor=plan.warmup_start, total_iters=num_warmup)
    return SequentialLR(optimizer, [warmup, wave], milestones=[num_warmup])
