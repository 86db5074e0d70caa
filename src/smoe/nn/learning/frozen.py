"""The gate does not learn."""

from __future__ import annotations

import torch
from torch import nn

from smoe.nn.gates.gate import SpatialGate
from smoe.nn.learning.learner import Learner, Step
from smoe.ops.routing import Routing
from smoe.ops.train_routing import train_routing


class FrozenLearner(Learner):
    """Leaves the gate as it is.

    The parameters of a gate do not require gradients while no layer trains it. Where another layer does, or where
    several processes train the model, the scores receive zeros from this layer.
    """

    trains_scores = False

    def route(self, gate: SpatialGate, input: torch.Tensor, layer: nn.Module, *, needs_scores: bool) -> Routing:
        """What the gate decides, without scores if nobody needs them."""
        needs_scores = needs_scores or any(parameter.requires_grad for parameter in gate.parameters())
        return gate.route(input, layer) if needs_scores else gate.decide(input, layer)

    def output(self, step: Step) -> torch.Tensor:
        """The selected experts' outputs."""
        output = train_routing(
            *(step.weighed(step.select(step.source, step.routing.indices)), step.routing),
            expert_channels=step.expert_channels,
            signal=step.signal,
            damping=step.damping,
        )
        # Damping counts errors that are not finite by itself.
        counter = step.signal.num_nonfinite if step.damping is None else None
        return _FrozenOutput.apply(output, step.routing.scores, counter)  # type: ignore[return-value]


class _FrozenOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, output, scores, num_nonfinite):
        ctx.save_for_backward(scores)
        ctx.num_nonfinite = num_nonfinite
        return output.detach()

    @staticmethod
    def backward(ctx, *grad_outputs):
        (error,) = grad_outputs
        if ctx.num_nonfinite is not None:
            # A sum is finite if all its terms are, and takes less time than a look at each.
            total = error.sum(dtype=torch.promote_types(error.dtype, torch.float32))
            ctx.num_nonfinite.add_(total.isfinite().logical_not())
        return error, torch.zeros_like(ctx.saved_tensors[0]) if ctx.needs_input_grad[1] else None, None
