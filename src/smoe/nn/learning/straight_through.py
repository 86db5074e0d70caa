"""The straight-through rule: the scores of the gate receive the gradient of choosing other experts.

To first order, serving a pixel by another expert changes the loss by the error signal times the difference of the
outputs. That is the derivative of the loss by how much of the exchange is made. (The paper's end-to-end variant gives
the gate the bare error, whose sign says nothing about a choice.) The optimiser decides what becomes of it.
"""

from __future__ import annotations

import torch

from smoe.nn.gates.factorised import FactorisedGate
from smoe.nn.learning.end_to_end import count_nonfinite
from smoe.nn.learning.learner import Learner, Setting, Step
from smoe.nn.learning.probing import check_exchangeable
from smoe.ops.families import family_gradient, sample_families
from smoe.ops.probe_routing import at_slots, draw_challenge, observe
from smoe.ops.routing import Routing
from smoe.ops.top_experts import family_members
from smoe.ops.train_routing import train_routing
from smoe.rules import StraightThrough

# Share of the pixels below which an expert is unused.
_UNUSED = 0.01


class StraightThroughLearner(Learner):
    """Compares all candidates of each family, or one challenger with one selected expert at each pixel."""

    rule: StraightThrough

    def __init__(self, rule: StraightThrough, setting: Setting) -> None:
        # The number of backward passes decides which experts are tried, or, with families, whether the gate learns.
        is_pairwise = setting.gate.order != "families"
        super().__init__(rule, setting, "num_trials" if is_pairwise else "num_passes")
        self._restarted_after = 0
        if is_pairwise:
            check_exchangeable(rule, setting, needs_order="score")
        elif setting.gate.looks_at_input:
            raise ValueError(
                f"the rule {rule.name!r} compares one choice for all samples: it needs a gate that does not look at "
                f"its input, got {type(setting.gate).__name__}"
            )

    def output(self, step: Step) -> torch.Tensor:
        """The selected experts' outputs; in backward, the scores receive the gradient of other choices."""
        step.gate.refuse_memory(self.rule)
        has_choice = step.gate.num_selected < step.gate.num_experts and step.routing.scores.requires_grad
        if has_choice and step.gate.order == "families" and self.rule.patience > 0:
            self._restart_unused(step)  # type: ignore[call-arg]
        if has_choice and step.gate.order == "families" and self.rule.noise > 0.0:
            step = step._replace(routing=self._draw(step.routing))
        selected = train_routing(
            *(step.weighed(step.select(step.source, step.routing.indices)), step.routing),
            expert_channels=step.expert_channels,
            signal=step.signal,
            damping=step.damping,
        )
        if not has_choice:
            return selected
        if step.gate.order == "families":
            return _Families.apply(selected, step.routing.scores, step.source, step, self)  # type: ignore[return-value]
        return self._exchange(step, selected)  # type: ignore[call-arg]

    @torch.compiler.disable  # whether it acts depends on a counter
    @torch.no_grad()
    def _restart_unused(self, step: Step) -> None:
        """Makes experts that serve hardly a pixel copies of the one of their family that serves most.

        It acts before a forward pass, once for each number of backward passes: a pass that is computed again finds it
        done. All processes decide alike, because the routing and the generator are the same.
        """
        num_passes = self.counters["num_passes"]
        if num_passes % self.rule.patience or num_passes == self._restarted_after:
            return
        self._restarted_after = num_passes
        gate, indices = step.gate, step.routing.indices
        if not isinstance(gate, FactorisedGate):
            return
        members = family_members(gate.num_experts, gate.num_selected, device=indices.device)
        use = torch.zeros(gate.num_experts, device=indices.device)
        use.scatter_add_(0, indices.flatten().long(), torch.ones(indices.numel(), device=indices.device))
        busiest = members.gather(1, use[members].argmax(dim=1, keepdim=True)).expand_as(members)
        sources = torch.arange(gate.num_experts, device=indices.device)
        is_unused = use < _UNUSED * indices.shape[2]
        copied = torch.empty_like(sources).scatter_(0, members.flatten(), busiest.flatten())
        sources = torch.where(is_unused, copied, sources)
        generator = torch.Generator().manual_seed(num_passes)
        for expert in range(gate.num_experts):
            step.restart_expert(torch.full_like(sources[0], expert), sources[expert], is_unused[expert], generator)
        gate.copy_keys(sources, generator)

    def _draw(self, routing: Routing) -> Routing:
        """The routing with an expert of each family drawn by the scores with noise."""
        # From the generator of the device, so that a pass that is computed again draws the same.
        seed = torch.randint(2**31 - 1, (), device=routing.scores.device)
        indices = sample_families(routing.scores, routing.indices.shape[1], seed, self.rule.noise)
        return routing._replace(indices=indices)

    @torch.compiler.disable  # what it tries depends on a counter
    def _exchange(self, step: Step, selected: torch.Tensor) -> torch.Tensor:
        routing = step.routing
        challenge = draw_challenge(routing.indices, step.gate.num_experts, self.counters["num_trials"])
        with torch.no_grad():
            others = step.select(step.source, challenge.experts)
        return _Exchange.apply(
            selected, routing.scores, others, routing.indices, *challenge, step.signal.num_nonfinite, self
        )  # type: ignore[return-value]


class _Families(torch.autograd.Function):
    @staticmethod
    def forward(ctx, selected, scores, source, step, learner):
        # Samples at equal distances; the source is saved by the experts too, so that this takes no memory.
        ctx.every = max(1, round(1.0 / learner.rule.share))
        ctx.save_for_backward(scores, step.routing.indices, source[:: ctx.every])
        ctx.step, ctx.learner = step._replace(source=None, routing=None), learner
        return selected.detach()

    @staticmethod
    def backward(ctx, *grad_outputs):
        (error,) = grad_outputs
        scores, indices, source = ctx.saved_tensors
        if not _is_due(ctx.learner, len(error)):
            # Several processes expect a gradient of every parameter; one does without the passes over zeros.
            has_peers = torch.distributed.is_available() and torch.distributed.is_initialized()
            return error, torch.zeros_like(scores) if has_peers else None, None, None, None
        step, temperature, part = ctx.step, ctx.learner.rule.temperature, error[:: ctx.every]
        products = step.candidate_products(source, part)
        if step.weighted:
            # An estimate from some of the samples, in the size of one from all of them.
            gradient = _weighted_gradient(scores, indices, products, temperature) * (len(error) / max(1, len(part)))
        else:
            gradient = family_gradient(scores, products, indices.shape[1], temperature, is_relative=True)
            # A loss scaler divides all gradients by its factor.
            gradient = gradient * step.signal.loss_scale.to(gradient.dtype)
        return error, count_nonfinite(gradient.to(scores.dtype), step.signal.num_nonfinite), None, None, None


def _is_due(learner: StraightThroughLearner, num_samples: int) -> bool:
    """Whether the gate learns in this pass: in each, unless the share of the batch is less than one sample."""
    period = max(1, round(1.0 / (learner.rule.share * max(1, num_samples))))
    # A compiled pass has no counters: there the gate learns always, and no expert restarts.
    if torch.compiler.is_compiling() or (period == 1 and learner.rule.patience == 0):
        return True
    learner.counters["num_passes"] += 1
    return period == 1 or learner.counters["num_passes"] % period == 1


def _weighted_gradient(
    scores: torch.Tensor, indices: torch.Tensor, products: torch.Tensor, temperature: float
) -> torch.Tensor:
    """The gradient where a score is a factor of the output too: of the choice, and of the factor."""
    of_choice = family_gradient(scores, products * scores, indices.shape[1], temperature)
    chosen = indices.long()
    return of_choice.scatter_add(1, chosen, products.to(scores.dtype).gather(1, chosen))


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
