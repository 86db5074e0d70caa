"""An exponential moving average of a model's weights, which is evaluated in their place."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from smoe.training.plan import TrainingPlan


class WeightAverage:
    """The average of parameters and buffers of a model, taken every few steps.

    Until the warm-up is over, it is the weights at its last update. The scores of gates are averaged like any
    parameter; what they choose is decided by the average.

    Args:
        model: as it starts, before anything is wrapped around it: it is copied.
        plan: how often, how slowly, and how long the warm-up is.
    """

    def __init__(self, model: nn.Module, plan: TrainingPlan) -> None:
        assert plan.average_every is not None
        self._every, self._num_warmup_epochs = plan.average_every, plan.warmup_epochs
        self._average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(rescaled_decay(plan)), use_buffers=True)

    @property
    def model(self) -> nn.Module:
        """The model with the averaged weights."""
        return self._average.module

    def observe(self, model: nn.Module, epoch: int, num_steps: int) -> None:
        """Takes in the weights if it is time.

        Args:
            model: the one that trains.
            epoch: from 1.
            num_steps: steps of this epoch that were made, at least one.
        """
        if (num_steps - 1) % self._every:
            return
        self._average.update_parameters(model)
        if epoch <= self._num_warmup_epochs:
            # The next update copies the weights, as the first one does.
            self._average.n_averaged.zero_()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return self._average.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state_dict`."""
        self._average.load_state_dict(state)


def rescaled_decay(plan: TrainingPlan) -> float:
    """What stays of the average at an update: longer runs and smaller batches have more updates to forget in."""
    assert plan.average_every is not None
    new = (1.0 - plan.average_decay) * plan.batch_size * plan.average_every / plan.max_epochs
    return 1.0 - min(1.0, new)
