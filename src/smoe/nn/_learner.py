"""What every training rule does for a layer: the routing and the output of a training pass, and its own state."""

from __future__ import annotations

import importlib
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from smoe.nn._shared_parameters import Memory
from smoe.ops._classification import train_routing
from smoe.ops._routing import Routing, weigh
from smoe.rules import Rule

if TYPE_CHECKING:
    from smoe.nn._routed_layer import RoutedLayer


class Step(NamedTuple):
    """One forward pass of a layer in training: the value that a learner works on.

    Attributes:
        layer: The layer.
        source: What the experts work on, `(B, ...)`: the layer's input, or the outputs of all experts.
        routing: Routing of this pass.
    """

    layer: RoutedLayer
    source: torch.Tensor
    routing: Routing

    def select(self, experts: torch.Tensor) -> torch.Tensor:
        """Outputs `(B, E' * F, *grid)` of experts `(1 or B, E', P)`."""
        return self.layer._select(self.source, experts)

    def weighed(self, selected: torch.Tensor) -> torch.Tensor:
        """The outputs times their weights, if the layer is weighted; the weights receive no gradient."""
        if not self.layer._weighted:
            return selected
        return weigh(selected, self.routing.weights.detach(), self.layer._expert_channels)

    def damped(self, selected: torch.Tensor) -> torch.Tensor:
        """The outputs, whose error is damped in the backward pass, if the layer damps errors."""
        layer = self.layer
        if layer._active_damping is None:
            return selected
        return train_routing(
            *(selected, self.routing),
            expert_channels=layer._expert_channels,
            signal=layer._signal,
            damping=layer._active_damping,
        )


class Learner(Memory):
    """Trains the gate of a layer within the layer's own forward and backward passes.

    A learner belongs to one layer and works on one `Step` at a time.

    Args:
        rule: Rule that made the learner.
        layer: The layer, for a subclass to check; not kept.
        *counters: Names of the counters.
    """

    trains_scores: ClassVar[bool] = True
    """Whether the scores of the gate receive gradients that are to be followed by an optimiser."""

    trains_alone: ClassVar[bool] = False
    """Whether the gate takes steps of its own, when the optimiser of the layer steps."""

    def __init__(self, rule: Rule, layer: RoutedLayer, *counters: str) -> None:
        del layer
        super().__init__(*counters)
        self.rule = rule

    @abstractmethod
    def output(self, step: Step) -> torch.Tensor:
        """Computes the layer's output `(B, E * F, *grid)`, and arranges that its backward pass trains the gate."""

    def route(self, layer: RoutedLayer, input: torch.Tensor) -> Routing:
        """The routing of a training pass: what the gate decides, unless the rule selects otherwise."""
        return layer.gate.route(input)

    def continue_from(self, previous: Learner) -> None:
        """Takes over what the learner of the rule before has counted, if it means the same here: nothing by default."""

    def after_step(self, layer: RoutedLayer, *, is_taken: bool) -> None:
        """Called when the optimiser of the layer has stepped, of a gate that takes steps of its own.

        Args:
            layer: The layer.
            is_taken: Whether the gate has taken one.
        """

    def extra_repr(self) -> str:
        """The rule."""
        return str(self.rule)


def make_learner(rule: Rule, layer: RoutedLayer) -> Learner:
    """The learner that a rule names.

    Raises:
        ValueError: If the rule names none, or the layer does not suit it.
    """
    kind = rule.learner
    if isinstance(kind, str):
        module, _, name = kind.partition(":")
        kind = getattr(importlib.import_module(module), name)
    if not (isinstance(kind, type) and issubclass(kind, Learner)):
        raise ValueError(f"the rule {type(rule).__name__} names no learner: set its class attribute `learner`")
    return kind(rule, layer)
