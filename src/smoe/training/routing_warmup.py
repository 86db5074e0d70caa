"""Lets the experts learn for some epochs before the routing does."""

from __future__ import annotations

from torch import nn

from smoe.nn.routed_layer import RoutedLayer


class RoutingWarmup:
    """Keeps a model's gates as they start, and the experts' error whole, during the first epochs.

    The gates take part in the backward pass meanwhile, with a gradient of zero: several processes expect one of every
    parameter.

    Args:
        model: whose SMoE layers are paused; each goes on with the rule it has now.
        num_epochs: to wait for.
    """

    def __init__(self, model: nn.Module, num_epochs: int) -> None:
        if num_epochs < 0:
            raise ValueError(f"the warm-up of the routing must not be negative, got {num_epochs} epochs")
        self.num_epochs = num_epochs
        self._rules = [(layer, layer.routing_training) for layer in model.modules() if isinstance(layer, RoutedLayer)]

    def begin_epoch(self, epoch: int) -> None:
        """Sets each layer's rule for an epoch, numbered from 1."""
        is_paused = epoch <= self.num_epochs
        for layer, rule in self._rules:
            layer.routing_training = rule.paused() if is_paused else rule
