"""An exponential moving average of a model's weights, which is evaluated in their place."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from smoe.nn.sharded_parameters import local_part
from smoe.training.plan import TrainingPlan


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
