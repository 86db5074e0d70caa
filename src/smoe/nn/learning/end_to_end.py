"""The gate receives the error at its selected experts (paper, table 1)."""

from __future__ import annotations

import torch

from smoe.nn.learning.learner import Learner, Step
from smoe.ops.routing_error import end_to_end_gradient
from smoe.ops.train_routing import train_routing


class EndToEndLearner(Learner):
    """Gives the scores of the selected experts the error signal, times their outputs if these are weighted."""

    def output(self, step: Step) -> torch.Tensor:
        """The selected experts' outputs; in backward, the selected scores receive the error."""
        step.gate.refuse_memory(self.rule)
        selected = step.select(step.source, step.routing.indices)
        output = train_routing(
            *(step.weighed(selected), step.routing),
            expert_channels=step.expert_channels,
            signal=step.signal,
            damping=step.damping,
        )
        outputs = selected.detach() if step.weighted else None
        return _EndToEnd.apply(
            output, step.routing.scores, step.routing.indices, outputs, step.signal.num_nonfinite, step.expert_channels
        )  # type: ignore[return-value]


class _EndToEnd(torch.autograd.Function):
    @staticmethod
    def forward(ctx, output, scores, indices, outputs, num_nonfinite, expert_channels):
        ctx.save_for_backward(scores, indices, outputs)
        ctx.num_nonfinite, ctx.expert_channels = num_nonfinite, expert_channels
        return output.detach()

    @staticmethod
    def backward(ctx, *grad_outputs):
        (error,) = grad_outputs
        scores, indices, outputs = ctx.saved_tensors
        # Detached: the gradient of the gate is no function to be differentiated again.
        signal = (error.detach() if outputs is None else error.detach() * outputs).flatten(2)
        gradient = end_to_end_gradient(scores, indices, signal, ctx.expert_channels)
        gradient = count_nonfinite(gradient, ctx.num_nonfinite)
        return error, gradient, None, None, None, None


def count_nonfinite(gradient: torch.Tensor, num_nonfinite: torch.Tensor) -> torch.Tensor:
    """The gradient, or zeros if it is not finite, which is counted. Nothing is read on the host."""
    if gradient.numel() == 0:
        return gradient
    is_finite = gradient.isfinite().all()
    num_nonfinite += is_finite.logical_not()
    return torch.where(is_finite, gradient, torch.zeros_like(gradient))
