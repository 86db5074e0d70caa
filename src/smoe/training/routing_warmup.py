"""Trains the experts for some epochs before the routing learns."""

from __future__ import annotations

from torch import nn

from smoe.nn.routed_layer import RoutedLayer
from smoe.rules import Frozen


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
            layer.rule = Frozen() if is_paused else rule
            layer.damping = None if is_paused else damping
