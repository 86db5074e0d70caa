"""Trains the experts for some epochs before the routing learns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from smoe.nn._classification import FrozenLearner
from smoe.nn._routed_layer import RoutedLayer
from smoe.rules import Frozen


class PausedLearner(FrozenLearner):
    """Leaves the gate as it is, but keeps its parameters in the backward pass, with gradients of zero.

    An optimiser then counts the steps of the warm-up for the gate too, in one process as in several, which expect a
    gradient of every parameter that required one when the model was wrapped.
    """

    trains_scores = True


@dataclass(frozen=True)
class Paused(Frozen):
    """The gate waits for the end of the warm-up."""

    name: ClassVar[str] = "paused"
    learner: ClassVar[Any] = PausedLearner


class RoutingWarmup:
    """Keeps the gates of a model as they start, and the error of the experts whole, during the first epochs.

    Afterwards each layer has its rule and its damping again. The state of a rule starts anew then, so that a run that
    is stopped and resumed at any time, also within the warm-up, equals one that was not.

    Args:
        model: Model whose SMoE layers wait; each continues with the rule and the damping it has now.
        num_epochs: Number of epochs to wait for; 0 for none.
    """

    def __init__(self, model: nn.Module, num_epochs: int) -> None:
        if num_epochs < 0:
            raise ValueError(f"the warm-up of the routing must not be negative, got {num_epochs} epochs")
        self.num_epochs = num_epochs
        self._settings = [
            (layer, layer.rule, layer.damping) for layer in model.modules() if isinstance(layer, RoutedLayer)
        ]

    def begin_epoch(self, epoch: int) -> None:
        """Sets the rule and the damping of each layer for an epoch, numbered from 1."""
        is_paused = epoch <= self.num_epochs
        for layer, rule, damping in self._settings:
            layer.rule = Paused() if is_paused else rule
            layer.damping = None if is_paused else damping
