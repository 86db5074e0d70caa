"""What changes slowly in a training: the learning rate by its schedule, and the average of the weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from smoe.nn._shared_parameters import local_part
from smoe.training.plan import TrainingPlan


def make_schedule(optimizer: torch.optim.Optimizer, plan: TrainingPlan) -> ReduceLROnPlateau | CosineSchedule:
    """Returns the schedule of a plan; `step(monitored)` sets the learning rates after an epoch.

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


class WeightAverage:
    """The average of the parameters and buffers of a model, updated every few steps.

    Until the warm-up is over, it is a copy of the weights at its last update. The scores of gates are averaged like any
    parameter; the choices are those of the averaged scores. Integers, such as counters and codes, are copied. What only
    one of the two models has, such as the state of a rule that is not in force, is left alone.

    Args:
        model: Model at the start, before anything is wrapped around it: it is copied.
        plan: Plan that gives the interval of the updates, the decay and the length of the warm-up.

    Attributes:
        model: Model with the averaged weights. It and `has_begun` are what a resumed run needs.
        has_begun: Whether the warm-up is over.
    """

    def __init__(self, model: nn.Module, plan: TrainingPlan) -> None:
        assert plan.average_every is not None
        self._every, self._num_warmup_epochs = plan.average_every, plan.warmup_epochs
        self._share = 1.0 - rescaled_decay(plan)
        self.has_begun = False
        self.model = copy.deepcopy(model)

    def observe(self, model: nn.Module, epoch: int, num_steps: int) -> None:
        """Takes in the weights if it is time.

        Args:
            model: Model that trains.
            epoch: Number of the epoch, from 1.
            num_steps: Number of steps that were made in this epoch, at least one.
        """
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
    """Parameters and buffers; of a parameter that is sharded, the part of this process."""
    for name, parameter in model.named_parameters():
        yield name, local_part(parameter)
    yield from model.named_buffers()


def rescaled_decay(plan: TrainingPlan) -> float:
    """Returns the share of the average that is kept at an update; larger for longer runs and smaller batches."""
    assert plan.average_every is not None
    new = (1.0 - plan.average_decay) * plan.batch_size * plan.average_every / plan.max_epochs
    return 1.0 - min(1.0, new)
