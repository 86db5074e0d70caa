"""The straight-through rule: the gate's scores receive the gradient of exchanging experts.

To first order, serving a pixel by another expert changes the loss by the error signal times the difference of the
outputs. That is the derivative of the loss by how much of the exchange is made, and the scores of the two experts
receive it with opposite signs. (The paper's end-to-end variant gives the gate the bare error, whose sign says nothing
about a choice.) The optimiser decides what becomes of it.
"""

from __future__ import annotations

import torch

from smoe.nn.learning.end_to_end import count_nonfinite
from smoe.nn.learning.learner import Learner, Setting, Step
from smoe.nn.learning.probing import check_exchangeable
from smoe.ops.probe_routing import at_slots, draw_challenge, observe
from smoe.ops.train_routing import train_routing
from smoe.rules import Rule


class StraightThroughLearner(Learner):
    """Compares one challenger with one selected expert at each pixel, in every step."""

    def __init__(self, rule: Rule, setting: Setting) -> None:
        # The number of backward passes decides who is tried.
        super().__init__(rule, setting, "num_trials")
        check_exchangeable(rule, setting)

    @torch.compiler.disable  # what it tries depends on a counter
    def output(self, step: Step) -> torch.Tensor:
        """The selected experts' outputs; in backward, the scores of a challenger and its incumbent get the gradient."""
        gate, routing = step.gate, step.routing
        gate.refuse_memory(self.rule)
        if gate.num_selected == gate.num_experts:
            return step.apply_experts(routing.indices)
        challenge = draw_challenge(routing.indices, gate.num_experts, self.counters["num_trials"])
        selected, others = step.apply_challengers(routing.indices, challenge.experts)
        selected = train_routing(
            selected, routing, expert_channels=step.expert_channels, signal=step.signal, damping=step.damping
        )
        return _Exchange.apply(
            selected, routing.scores, others, routing.indices, *challenge, step.signal.num_nonfinite, self
        )  # type: ignore[return-value]


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, selected, scores, others, indices, challengers, slots, num_nonfinite, learner):
        difference = others.flatten(2) - at_slots(selected.flatten(2), slots, others.shape[1])
        ctx.save_for_backward(scores, difference, indices, challengers, slots)
        ctx.num_nonfinite, ctx.learner = num_nonfinite, learner
        return selected.detach()

    @staticmethod
    def backward(ctx, *grad_outputs):
        (error,) = grad_outputs
        scores, difference, indices, challengers, slots = ctx.saved_tensors
        # The loss scale stays: this is a gradient like that of every other parameter.
        slopes = observe(error.flatten(2), difference, slots, None).slopes.to(scores.dtype)[None, None]
        slopes = count_nonfinite(slopes, ctx.num_nonfinite)
        gradient = torch.zeros_like(scores)
        # A larger score of the challenger makes more of the exchange, a larger one of the incumbent less.
        gradient.scatter_(1, challengers.long(), slopes)
        gradient.scatter_(1, indices.long().gather(1, slots[None, None]), -slopes)
        ctx.learner.counters["num_trials"] += 1
        return error, gradient, None, None, None, None, None, None
