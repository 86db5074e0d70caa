"""The gate does not learn."""

from __future__ import annotations

import torch

from smoe.nn.gates.gate import SpatialGate
from smoe.nn.learning.learner import Learner, Setting, Step
from smoe.ops.train_routing import train_routing
from smoe.rules import Rule


class FrozenLearner(Learner):
    """Leaves the gate as it is.

    The parameters of a gate that the layer made do not require gradients while the rule is in force. Those of a gate
    that was given receive zeros, because other layers may train it, and because several processes expect a gradient of
    every parameter that had one when the model was wrapped.
    """

    def __init__(self, rule: Rule, setting: Setting) -> None:
        super().__init__(rule, setting)
        self._held = setting.gate.hold() if setting.owns_gate else []

    def output(self, step: Step) -> torch.Tensor:
        """The selected experts' outputs."""
        output = train_routing(
            *(step.weighed(step.select(step.source, step.routing.indices)), step.routing),
            expert_channels=step.expert_channels,
            signal=step.signal,
            damping=step.damping,
        )
        scores = step.routing.scores
        return _WithZeroGradient.apply(output, scores) if scores.requires_grad else output  # type: ignore[return-value]

    def finish(self, gate: SpatialGate) -> None:
        """Lets the gate's parameters require gradients again."""
        gate.release(self._held)


class _WithZeroGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, output, scores):
        ctx.save_for_backward(scores)
        return output.detach()

    @staticmethod
    def backward(ctx, *grad_outputs):
        (scores,) = ctx.saved_tensors
        return grad_outputs[0], torch.zeros_like(scores)
