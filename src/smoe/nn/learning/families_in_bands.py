"""The straight-through gradient of families on large grids, some families at a time.

What a family's scores receive follows from its own scores and products, but for one number: the spread of the products
of all families, in whose units the gradient is given. Each band of families is therefore computed in units of its own
spread, which is smaller or larger by a factor that is known when the last band is done. Neither the scores nor the
products of all experts are stored.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch

from smoe.nn.gates.banded import Band, BandedGate, full_precision, without_autocast
from smoe.nn.gates.gate import has_process_group
from smoe.nn.learning.learner import Step
from smoe.ops.family_gradient import relative_family_gradient
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
