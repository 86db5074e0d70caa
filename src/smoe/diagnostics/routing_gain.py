"""What the routing of a model is worth: its loss against that of the same model without choices."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

import torch
from torch import Tensor, nn

from smoe.diagnostics.evaluation_mode import evaluation_mode
from smoe.diagnostics.gates import layers_by_gate
from smoe.ops.routing import Routing

Loss = Callable[[Tensor, Tensor], Tensor]
"""Function of prediction and target that returns a scalar."""


class RoutingGain(NamedTuple):
    """Two losses of one model on one batch.

    Attributes:
        loss: Loss with the routing of the gates.
        loss_of_commonest: Loss with every pixel on the commonest expert of each slot.
    """

    loss: float
    loss_of_commonest: float

    @property
    def gain(self) -> float:
        """Share of the loss that the routing removes; 0 if it is worth nothing, NaN if the losses are not positive."""
        return 1.0 - self.loss / self.loss_of_commonest if self.loss_of_commonest > 0.0 else math.nan


def routing_gain(model: nn.Module, loss_fn: Loss, input: Tensor, target: Tensor) -> RoutingGain:
    """Compares the routing of all gates with every pixel on the commonest expert of each slot.

    The model is measured in evaluation mode and without gradients; its state and its mode stay as they are. A model
    without gates has two equal losses.

    Args:
        model: Model with SMoE layers.
        loss_fn: Function of prediction and target that returns a scalar.
        input: Input of the model.
        target: Target of the loss.
    """
    with evaluation_mode(model), torch.no_grad():
        loss = float(loss_fn(model(input), target))
        with ExitStack() as stack:
            for gate in layers_by_gate(model):
                stack.enter_context(gate.replaced_routing(on_commonest_experts))
            return RoutingGain(loss, float(loss_fn(model(input), target)))


def on_commonest_experts(routing: Routing) -> Routing:
    """Returns a routing with every pixel on the commonest expert of each slot.

    Of equally common experts the lowest is taken. No expert has two slots of a pixel: the later slot takes the
    commonest of the experts that are left.
    """
    num_experts = routing.scores.shape[1]
    is_free = torch.ones(num_experts, dtype=torch.long, device=routing.indices.device)
    commonest: list[Tensor] = []
    for slot in routing.indices.unbind(1):
        # One more than the count of each expert that is free; 0 for the others.
        counts = (slot.flatten().bincount(minlength=num_experts) + 1) * is_free
        # `max` returns the first of equal values.
        expert = counts.max(dim=0, keepdim=True).indices
        commonest.append(expert)
        is_free.index_fill_(0, expert, 0)
    indices = torch.cat(commonest).to(routing.indices.dtype)[None, :, None]
    return routing._replace(indices=indices.expand_as(routing.indices).contiguous())
