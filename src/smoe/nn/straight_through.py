"""The honest straight-through rule: the gate's scores receive the gradient of exchanging experts.

To first order, serving a pixel by another expert changes the loss by the error signal times the difference of the
outputs. That is the derivative of the loss by how much of the exchange is made, and the scores of the two experts
receive it with opposite signs. (The paper's end-to-end variant hands the gate the bare error, whose sign says nothing
about a choice.) The optimiser decides what becomes of it; `smoe.nn.probing` is the rule that decides by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch

from smoe.ops.probe_routing import at_slots, draw_challenge, observe

if TYPE_CHECKING:
    from smoe.nn.routed_layer import RoutedLayer


def _straight_through_output(
    layer: RoutedLayer, input: torch.Tensor, scores: torch.Tensor, indices: torch.Tensor
) -> torch.Tensor:
    """The selected experts' outputs; in backward, the scores of a challenger and its incumbent get the gradient.

    Args:
        layer: whose gate learns.
        input: `(B, C, H, W)`.
        scores: the gate's, `(X, H', W')`.
        indices: selected experts `(E, H', W')`.
    """
    challenge = draw_challenge(indices, layer.num_experts, int(layer.num_trials))
    selected, others = layer.apply_challengers(input, indices, challenge.experts)
    return _StraightThrough.apply(selected, scores, others, indices, *challenge, layer)  # type: ignore[return-value]


# What it tries depends on a counter: compilers leave it as it is.
straight_through_output = cast(
    "Callable[[RoutedLayer, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]",
    torch.compiler.disable(_straight_through_output),
)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, selected, scores, others, indices, challengers, slots, layer):
        difference = others - at_slots(selected, slots, layer.expert_channels)
        ctx.save_for_backward(scores, difference, indices, challengers, slots)
        ctx.layer = layer
        return selected.detach()

    @staticmethod
    def backward(ctx, *grad_outputs):
        (error,) = grad_outputs
        scores, difference, indices, challengers, slots = ctx.saved_tensors
        layer = ctx.layer
        # The scale stays: this is a gradient like that of every other parameter.
        slopes = observe(error, difference, slots, None).slopes.to(scores.dtype)[None]
        if not slopes.isfinite().all():
            layer.num_nonfinite_errors += 1
            slopes = torch.zeros_like(slopes)
        gradient = torch.zeros_like(scores)
        # A larger score of the challenger makes more of the exchange, a larger one of the incumbent less.
        gradient.scatter_(0, challengers.long(), slopes)
        gradient.scatter_(0, indices.long().gather(0, slots[None]), -slopes)
        layer.num_trials += 1
        return error, gradient, None, None, None, None, None
