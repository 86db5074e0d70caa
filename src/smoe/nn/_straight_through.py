"""The straight-through gradient of families on large grids, some families at a time.

What a family's scores receive follows from its own scores and products, but for one number: the spread of the products
of all families, in whose units the gradient is given. Each band of families is therefore computed in units of its own
spread, which is smaller or larger by a factor that is known when the last band is done. Neither the scores nor the
products of all experts are stored.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import nn

from smoe.nn._classification import count_nonfinite
from smoe.nn._gate import Band, BandedGate, SpatialGate, full_precision, without_autocast
from smoe.nn._gates import FactorisedGate
from smoe.nn._learner import Learner, Setting, Step
from smoe.nn._probing import check_exchangeable
from smoe.nn._shared_parameters import has_process_group
from smoe.ops._classification import train_routing
from smoe.ops._families import ALL_FAMILIES, family_gradient, relative_family_gradient, sample_families
from smoe.ops._probing import at_slots, draw_challenge, observe
from smoe.ops._routing import Routing, family_members
from smoe.rules import StraightThrough


class BandedLearner(Protocol):
    """What learning in bands needs of the learner of a layer."""

    @property
    def rule(self) -> StraightThrough:
        """The rule."""
        ...

    def is_due(self, gate: BandedGate, batch: int) -> bool:
        """Whether the gate learns in the next backward pass."""
        ...

    def samples(self, gate: BandedGate, batch: int) -> slice:
        """The samples that the gate learns from."""
        ...

    def count_pass(self, step: Step, indices: torch.Tensor, *, has_learned: bool) -> None:
        """Counts a backward pass."""
        ...


def learn_in_bands(selected: torch.Tensor, step: Step, learner: BandedLearner) -> torch.Tensor:
    """Returns the selected experts' outputs; in backward, the parameters of the gate receive their gradient.

    Args:
        selected: Outputs of the selected experts, `(B, E * F, *grid)`.
        step: The forward pass, of a layer that is not weighted.
        learner: Learner of the layer.
    """
    gate = step.gate
    assert isinstance(gate, BandedGate)
    return _FamiliesInBands.apply(selected, step.source, step, learner, *gate.score_sources())  # type: ignore[return-value]


class _FamiliesInBands(torch.autograd.Function):
    @staticmethod
    def forward(ctx, selected, source, step, learner, *parameters):
        ctx.is_due = learner.is_due(step.gate, len(source))
        ctx.part = learner.samples(step.gate, len(source))
        ctx.save_for_backward(step.routing.indices, source[ctx.part], *parameters)
        ctx.step, ctx.learner = step._replace(source=None, routing=None), learner
        return selected.detach()

    @staticmethod
    def backward(ctx, *grad_outputs):
        (error,) = grad_outputs
        indices, source, *parameters = ctx.saved_tensors
        ctx.learner.count_pass(ctx.step, indices, has_learned=ctx.is_due)
        if not ctx.is_due:
            # Several processes expect a gradient of every parameter.
            nothing = [torch.zeros_like(parameter) if has_process_group() else None for parameter in parameters]
            return error, None, None, None, *nothing
        step, needed = ctx.step, ctx.needs_input_grad[4:]
        total = _Total(step.gate, parameters, needed)
        part = error[ctx.part]
        unit = step.gradient_unit(source, part, len(error))
        for band in step.gate.bands():
            products = step.candidate_products(source, part, band.families)
            total.add(band, products, ctx.learner.rule.temperature, unit)
        spread = total.finish()
        # The gradient is 0 where the spread is not finite.
        step.signal.num_nonfinite.add_(spread.isfinite().logical_not())
        return error, None, None, None, *total.gradients


class _Part(NamedTuple):
    """A band whose gradient is in units of its own spread."""

    band: Band
    spread: torch.Tensor


class _Total:
    """Adds up the gradients of bands."""

    def __init__(self, gate: BandedGate, parameters: list[torch.Tensor], needed: tuple[bool, ...]) -> None:
        self.gate = gate
        self.parameters = parameters
        self.num_rows = len(gate.row_parameters())
        self.gradients = [
            torch.zeros_like(parameter) if is_needed else None
            for parameter, is_needed in zip(parameters, needed, strict=True)
        ]
        self.parts: list[_Part] = []
        # Unit of the gradients of parameters that belong to all experts: the largest spread so far.
        self.unit = torch.zeros((), dtype=torch.float64, device=parameters[0].device)

    def add(self, band: Band, products: torch.Tensor, temperature: float, factor: torch.Tensor) -> None:
        """Adds a band: `products` are those of its experts, `(1, X', P)`, and `factor` that of the gradient."""
        leaves = [
            (parameter[band.experts] if number < self.num_rows else parameter).detach().requires_grad_()
            for number, parameter in enumerate(self.parameters)
        ]
        with torch.enable_grad(), without_autocast(products.device):
            scores = full_precision(self.gate.scores_of(tuple(leaves[: self.num_rows]), tuple(leaves[self.num_rows :])))
        gradient, spread = relative_family_gradient(
            scores.detach()[None], products, band.num_families, temperature, factor
        )
        spread = spread.double()
        self.parts.append(_Part(band, spread))
        wanted = [leaf for leaf, total in zip(leaves, self.gradients, strict=True) if total is not None]
        found = iter(torch.autograd.grad(scores, wanted, gradient[0].to(scores.dtype)))
        unit = torch.maximum(self.unit, spread.nan_to_num(nan=torch.inf))
        for number, total in enumerate(self.gradients):
            if total is None:
                continue
            if number < self.num_rows:
                total[band.experts] = next(found)
            else:
                total.mul_(_ratio(self.unit, unit).to(total.dtype))
                total.add_(next(found) * _ratio(spread, unit).to(total.dtype))
        self.unit = unit

    def finish(self) -> torch.Tensor:
        """Brings all gradients to the unit of all bands, which is returned: the spread of all products."""
        num_experts = self.gate.num_experts
        squares = [part.spread**2 * (part.band.experts.stop - part.band.experts.start) for part in self.parts]
        spread = (torch.stack(squares).sum() / num_experts).sqrt()
        for number, total in enumerate(self.gradients):
            if total is None:
                continue
            if number < self.num_rows:
                for part in self.parts:
                    total[part.band.experts] *= _ratio(part.spread, spread).to(total.dtype)
            else:
                total.mul_(_ratio(self.unit, spread).to(total.dtype))
        return spread


def _ratio(numerator: torch.Tensor, denominator: torch.Tensor) -> torch.Tensor:
    """A quotient of spreads; 0 where one is not finite or the denominator is 0."""
    is_usable = numerator.isfinite() & denominator.isfinite() & (denominator > 0.0)
    return torch.where(is_usable, numerator, 0.0) / torch.where(is_usable, denominator, 1.0)


# Share of the pixels below which an expert is unused.
_UNUSED = 0.01


class StraightThroughLearner(Learner):
    """Compares all candidates of each family, or one challenger with one selected expert at each pixel."""

    rule: StraightThrough

    def __init__(self, rule: StraightThrough, setting: Setting) -> None:
        # The number of backward passes decides which experts are tried, or, with families, whether the gate learns.
        is_pairwise = setting.gate.order != "families"
        super().__init__(rule, setting, *(("num_trials",) if is_pairwise else ("num_passes", "num_waited")))
        if is_pairwise:
            check_exchangeable(rule, setting, needs_order="score")
        elif setting.gate.looks_at_input:
            raise ValueError(
                f"the rule {rule.name!r} compares one choice for all samples: it needs a gate that does not look at "
                f"its input, got {type(setting.gate).__name__}"
            )

    def route(self, gate: SpatialGate, input: torch.Tensor, layer: nn.Module, *, needs_scores: bool) -> Routing:
        """With families, an expert of each drawn by the scores with noise."""
        if gate.order != "families" or not _can_learn(gate):
            return gate.route(input, layer)
        noise, num_selected, device = self._noise(), gate.num_selected, next(gate.parameters()).device
        # From the generator of the device, so that a pass that is computed again draws the same.
        seed = torch.randint(2**31 - 1 if noise > 0.0 else 1, (), device=device)
        waits = not (needs_scores or has_process_group() or self.is_due(gate, len(input)))
        if isinstance(gate, BandedGate) and ((waits and gate.can_draw) or (not needs_scores and gate.works_in_bands)):
            return gate.draw(seed, noise)
        if noise == 0.0:
            return gate.route(input, layer)
        return gate.route(input, layer, lambda scores: sample_families(scores, num_selected, seed, noise))

    def output(self, step: Step) -> torch.Tensor:
        """The selected experts' outputs; in backward, the scores receive the gradient of other choices."""
        step.gate.refuse_memory(self.rule)
        is_family, has_scores = step.gate.order == "families", step.routing.has_scores
        has_choice = _can_learn(step.gate) and (step.routing.scores.requires_grad or not has_scores)
        if has_choice and not is_family:
            return self._exchange(step)  # type: ignore[call-arg]
        selected = _damped(step, step.weighed(step.select(step.source, step.routing.indices)))
        if not has_choice:
            return selected
        if not has_scores:
            is_banded = isinstance(step.gate, BandedGate) and step.gate.works_in_bands
            if is_banded:
                return learn_in_bands(selected, step, self)
            return _Waiting.apply(selected, step, self)  # type: ignore[return-value]
        return _Families.apply(selected, step.routing.scores, step.source, step, self)  # type: ignore[return-value]

    def _noise(self) -> float:
        """Standard deviation of the noise in this pass."""
        rule = self.rule
        # A compiled pass has no counters.
        if rule.warm_up == 0 or rule.noise == 0.0 or torch.compiler.is_compiling():
            return rule.noise
        return rule.noise * min(1.0, self.counters["num_passes"] / rule.warm_up)

    def num_samples(self, gate: SpatialGate, batch: int) -> float:
        """Number of samples that the gate learns from in each pass; less than 1 if it learns in some passes only.

        Args:
            gate: Gate of the layer.
            batch: Samples of the batch.
        """
        share = self.rule.share
        if share is None:
            num_others = -(-gate.num_experts // gate.num_selected) - 1
            share = min(0.25, 0.5 / max(1, num_others))
        return share * max(1, batch)

    def samples(self, gate: SpatialGate, batch: int) -> slice:
        """The samples that the gate learns from, at equal distances.

        The layer's input is saved by the experts too, so that a slice of it takes no memory.
        """
        count = max(1, int(self.num_samples(gate, batch)))
        every = max(1, batch // count)
        return slice(0, count * every, every)

    def continue_from(self, previous: Learner) -> None:
        """Goes on counting, so that a schedule can change the temperature or the noise in the course of a training."""
        if isinstance(previous, StraightThroughLearner) and previous.counters.keys() == self.counters.keys():
            self.counters = dict(previous.counters)

    def is_due(self, gate: SpatialGate, batch: int) -> bool:
        """Whether the gate learns in the next backward pass: in each, unless its share is less than one sample."""
        # A compiled pass has no counters: there the gate learns always, and no expert restarts.
        if torch.compiler.is_compiling():
            return True
        waited = self.counters["num_waited"]
        return waited == 0 or waited >= round(1.0 / self.num_samples(gate, batch))

    def count_pass(self, step: Step, indices: torch.Tensor, *, has_learned: bool) -> None:
        """Counts a backward pass; when it is complete, experts that are not used may start anew.

        Args:
            step: The forward pass.
            indices: Experts that were selected.
            has_learned: Whether the gate learned.
        """
        if torch.compiler.is_compiling():
            return
        self.counters["num_passes"] += 1
        self.counters["num_waited"] = 1 if has_learned else self.counters["num_waited"] + 1
        num_passes, patience = self.counters["num_passes"], self.rule.patience
        is_due = patience > 0 and num_passes % patience == 0
        if is_due and step.restart_experts is not None and isinstance(step.gate, FactorisedGate):
            restart = partial(_restart_unused, step.gate, step.restart_experts, indices, num_passes)
            torch.autograd.Variable._execution_engine.queue_callback(restart)

    @torch.compiler.disable  # what it tries depends on a counter
    def _exchange(self, step: Step) -> torch.Tensor:
        routing = step.routing
        challenge = draw_challenge(routing.indices, step.gate.num_experts, self.counters["num_trials"])
        selected, others = step.select_with(challenge.experts)
        selected = _damped(step, step.weighed(selected))
        return _Exchange.apply(
            selected, routing.scores, others, routing.indices, *challenge, step.signal.num_nonfinite, self
        )  # type: ignore[return-value]


def _damped(step: Step, selected: torch.Tensor) -> torch.Tensor:
    """The selected experts' outputs, whose error is damped in the backward pass."""
    return train_routing(
        selected, step.routing, expert_channels=step.expert_channels, signal=step.signal, damping=step.damping
    )


class _Families(torch.autograd.Function):
    @staticmethod
    def forward(ctx, selected, scores, source, step, learner):
        ctx.is_due = learner.is_due(step.gate, len(source))
        ctx.part = learner.samples(step.gate, len(source))
        ctx.save_for_backward(scores, step.routing.indices, source[ctx.part])
        ctx.step, ctx.learner = step._replace(source=None, routing=None), learner
        return selected.detach()

    @staticmethod
    def backward(ctx, *grad_outputs):
        (error,) = grad_outputs
        scores, indices, source = ctx.saved_tensors
        ctx.learner.count_pass(ctx.step, indices, has_learned=ctx.is_due)
        if not ctx.is_due:
            # Several processes expect a gradient of every parameter; one does without the passes over zeros.
            return error, torch.zeros_like(scores) if has_process_group() else None, None, None, None
        step, temperature, part = ctx.step, ctx.learner.rule.temperature, error[ctx.part]
        products = step.candidate_products(source, part, ALL_FAMILIES)
        if step.weighted:
            # An estimate from some of the samples, in the size of one from all of them.
            gradient = _weighted_gradient(scores.detach(), indices, products, temperature)
            gradient = gradient * (len(error) / max(1, len(part)))
            gradient = count_nonfinite(gradient, step.signal.num_nonfinite)
        else:
            unit = step.gradient_unit(source, part, len(error))
            gradient, spread = relative_family_gradient(scores, products, indices.shape[1], temperature, unit)
            # The gradient is 0 where the spread is not finite.
            step.signal.num_nonfinite.add_(spread.isfinite().logical_not())
        return error, gradient.to(scores.dtype), None, None, None


class _Waiting(torch.autograd.Function):
    """A pass in which the gate does not learn."""

    @staticmethod
    def forward(ctx, selected, step, learner):
        ctx.save_for_backward(step.routing.indices)
        ctx.step, ctx.learner = step._replace(source=None, routing=None), learner
        return selected.detach()

    @staticmethod
    def backward(ctx, *grad_outputs):
        ctx.learner.count_pass(ctx.step, *ctx.saved_tensors, has_learned=False)
        return grad_outputs[0], None, None


@torch.no_grad()
def _restart_unused(
    gate: FactorisedGate,
    restart_experts: Callable[[torch.Tensor, torch.Generator], None],
    indices: torch.Tensor,
    num_passes: int,
) -> None:
    """Makes experts that serve hardly a pixel copies of the one of their family that serves most.

    All processes decide alike: by the pixels of all of them, and with the same random numbers.

    Args:
        gate: Gate of the layer.
        restart_experts: Makes experts of the layer copies of others.
        indices: Selected experts `(1, E, P)`.
        num_passes: Number of backward passes, which decides the random numbers.
    """
    members = family_members(gate.num_experts, gate.num_selected, device=indices.device)
    use = torch.zeros(gate.num_experts, device=indices.device)
    use.scatter_add_(0, indices.flatten().long(), torch.ones(indices.numel(), device=indices.device))
    use /= indices.shape[2]
    if has_process_group():
        # Each process has drawn experts with noise of its own.
        torch.distributed.all_reduce(use)
        use /= torch.distributed.get_world_size()
    busiest = members.gather(1, use[members].argmax(dim=1, keepdim=True)).expand_as(members)
    sources = torch.arange(gate.num_experts, device=indices.device)
    copied = torch.empty_like(sources).scatter_(0, members.flatten(), busiest.flatten())
    sources = torch.where(use < _UNUSED, copied, sources)
    generator = torch.Generator().manual_seed(num_passes)
    restart_experts(sources, generator)
    gate.copy_keys(sources, generator)


def _can_learn(gate: SpatialGate) -> bool:
    has_choice = gate.num_selected < gate.num_experts
    return has_choice and any(parameter.requires_grad for parameter in gate.parameters())


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
        slopes = observe(error.detach().flatten(2), difference, slots, None).slopes.to(scores.dtype)[None, None]
        slopes = count_nonfinite(slopes, ctx.num_nonfinite)
        gradient = torch.zeros_like(scores)
        # A larger score of the challenger makes more of the exchange, a larger one of the incumbent less.
        gradient.scatter_(1, challengers.long(), slopes)
        gradient.scatter_(1, indices.long().gather(1, slots[None, None]), -slopes)
        ctx.learner.counters["num_trials"] += 1
        return error, gradient, None, None, None, None, None, None
