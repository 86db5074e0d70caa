"""The default rule: the scores of all candidates of a family receive the gradient of a softmax mixture of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from smoe.nn._gate import without_autocast
from smoe.nn._routed_layer import Learner, Step, TrainGate
from smoe.ops._families import experts_of, relative_family_gradient, sample_families
from smoe.ops._routing import Routing
from smoe.rules import StraightThrough

if TYPE_CHECKING:
    from smoe.nn._routed_layer import RoutedLayer

# Steps of the gate after which the noise has fallen to a root of a half.
_FALL = 1000


class StraightThroughLearner(Learner):
    """Compares all candidates of each family on a share of the samples; the gate takes steps of its own."""

    trains_scores = False
    trains_alone = True

    rule: StraightThrough
    seed: torch.Tensor

    def __init__(self, rule: StraightThrough, layer: RoutedLayer) -> None:
        gate = layer.gate
        # Backward passes since the gate learned decide when it learns again, its steps how large the noise is.
        super().__init__(rule, layer, "num_waited", "num_steps")
        if not gate._can_draw:
            raise ValueError(
                f"the rule {rule.name!r} compares the experts of each family, one choice for all samples: it needs a "
                f"gate with order='families' that neither looks at its input nor adds noise, got a "
                f"{type(gate).__name__} with order={gate.order!r}"
            )
        if layer._weighted:
            raise ValueError(
                f"the rule {rule.name!r} compares outputs that are not multiplied by scores, got weighted=True; the "
                "rules 'rc' and 'end_to_end' serve weighted layers"
            )
        # Share of the samples that the gate learns from; less than one sample: it learns in some passes.
        default = min(0.25, 0.5 / max(1, -(-gate.num_experts // gate.num_selected) - 1))
        self._share = default if rule.share is None else rule.share
        device = layer._signal.num_nonfinite.device
        self.register_buffer("seed", torch.randint(2**31 - 1, (), device=device))
        # For compiled passes, which have no counters: whether the gate learns in the next pass, and how often.
        self._is_due, self._period, self._is_counted = True, 1, False

    def route(self, layer: RoutedLayer, input: torch.Tensor) -> Routing:
        """An expert of each family drawn by the scores with noise, the same until the gate takes its next step."""
        gate, trained, is_compiling = layer.gate, layer._trained_parameter(), torch.compiler.is_compiling()
        if trained is None or not gate._learns or gate.num_selected == gate.num_experts:
            return gate.route(input) if layer._needs_scores else gate._decide(input)
        assert gate.steps is not None
        noise = self.rule.noise
        if not is_compiling:  # a compiled pass has no counters
            gate._begin_pass()
            num_steps = self.counters["num_steps"]
            noise *= min(1.0, num_steps / self.rule.warm_up) if self.rule.warm_up > 0 else 1.0
            noise /= math.sqrt(1.0 + num_steps / _FALL)
        seed = self.seed + gate.steps.num_steps
        if not layer._needs_scores and not is_compiling and gate._can_draw:
            draw = gate._draw_again if self._share * len(input) < 1.0 else gate._draw
            return draw(seed if noise > 0.0 else None, noise)
        # A compiled pass that stores scores gives them a gradient, of zeros if nothing is learned.
        with torch.set_grad_enabled(torch.is_grad_enabled() and (self._is_due or not is_compiling)):
            routing = gate.route(input)
        if noise == 0.0:
            return routing
        # Larger scores are smaller noise.
        scores = routing.scores * (1.0 + gate.steps.num_steps / _FALL).sqrt() if is_compiling else routing.scores
        return routing._replace(indices=sample_families(scores, gate.num_selected, seed, noise))

    def lesson(self, step: Step) -> _Lesson:
        """The gradient of other choices."""
        layer, source, routing = step
        gate, trained = layer.gate, layer._trained_parameter()
        if trained is None or not gate._learns or gate.num_selected == gate.num_experts:
            return _Lesson(layer, self, None, None, ())
        part, numbers = (
            self._samples(len(source)),
            () if torch.compiler.is_compiling() else tuple(gate._learned_numbers()),
        )
        return _Lesson(layer, self, trained, part, numbers, part is not None, routing.indices.shape[2], routing.pixels)

    def output(self, step: Step) -> torch.Tensor:
        """The selected experts' outputs; in backward, the gate receives the gradient of other choices."""
        layer, source, routing = step
        selected, compared = layer._select_compared(source, routing.indices)
        if layer._needs_scores:
            selected = step.damped(selected)
        lesson = self.lesson(step)
        part = lesson.part
        if lesson.trained is None:
            return selected
        if not torch.compiler.is_compiling():
            return TrainGate.apply(selected, source, lesson, *compared, *lesson.numbers)  # type: ignore[return-value]
        if part is None:
            return selected
        return _FamiliesWithScores.apply(selected, routing.scores, source, layer, self, part, *compared)  # type: ignore[return-value]

    def _samples(self, batch: int) -> slice | None:
        """The samples that the gate learns from in this pass, at equal distances; None if it does not learn."""
        number = self._share * max(1, batch)
        if number < 1.0:
            period = round(1.0 / number)
            if torch.compiler.is_compiling():
                self._period, is_due = period, self._is_due
            else:
                is_due = not 0 < self.counters["num_waited"] < period
            if not is_due:
                return None
        count = max(1, int(number))
        every = max(1, batch // count)
        return slice(0, count * every, every)

    def continue_from(self, previous: Learner) -> None:
        """Goes on counting, so that a schedule can change the temperature or the noise during training."""
        if isinstance(previous, StraightThroughLearner):
            self.counters = dict(previous.counters)
            self.seed.copy_(previous.seed)

    @torch.no_grad()
    def after_step(self, layer: RoutedLayer, *, is_taken: bool) -> None:
        """Counts."""
        del layer
        counters = self.counters
        if not self._is_counted:
            counters["num_waited"] = 1 if self._is_due else counters["num_waited"] + 1
        self._is_counted = False
        self._is_due = not 0 < counters["num_waited"] < self._period
        counters["num_steps"] += is_taken


@dataclass
class _Lesson:
    """What the gate learns in the backward pass of the selected outputs, some families at a time.

    Neither the scores nor the products of all experts are stored.
    """

    layer: RoutedLayer
    learner: StraightThroughLearner
    trained: torch.nn.Parameter | None
    part: slice | None
    numbers: tuple[torch.Tensor, ...]
    needs_source: bool = False
    num_pixels: int = 0
    pixels: torch.Tensor | None = None

    def learn(
        self, error: torch.Tensor, source: torch.Tensor, compared: tuple[torch.Tensor, ...], is_finite: bool | None
    ) -> list[Any]:
        del is_finite
        gradients = self._gradients(error, source, compared)
        # Where a loop asks for the gradients of its parameters only, by `inputs=` or `torch.autograd.grad`, these would
        # be dropped.
        is_asked = torch.compiler.is_compiling() or self.trained is None or _is_asked(self.numbers[0])
        if not is_asked and self.trained is not None and _is_asked(self.trained):
            for values, found in zip(self.numbers, gradients, strict=True):
                if found is not None:
                    values.grad = found if values.grad is None else values.grad + found
        return gradients

    def _gradients(self, error: torch.Tensor, source: torch.Tensor, compared: tuple[torch.Tensor, ...]) -> list[Any]:
        layer, learner, gate, numbers = self.layer, self.learner, self.layer.gate, self.numbers
        nothing: list[Any] = [None] * len(numbers)
        if self.trained is None:
            return nothing
        learner.counters["num_waited"] = 1 if self.part is not None else learner.counters["num_waited"] + 1
        learner._is_counted = True
        gate._note_pass(layer, self.trained)
        # Derivatives that a loss is made of (`create_graph`) are no errors of a prediction: nothing is learned of them.
        if self.part is None or torch.is_grad_enabled():
            return nothing
        source, error, temperature = source[self.part], error[self.part], learner.rule.temperature
        fused = layer._family_gradient(source, error, temperature, *compared) if self.pixels is None else None
        if fused is not None:
            gradients, is_learned = fused
            if not is_learned:
                layer._signal.num_nonfinite.add_(1)
            return list(map(gradients.get, map(id, numbers)))
        total = nothing
        for families in gate._bands(self.num_pixels):
            experts = experts_of(gate.num_experts, gate.num_selected, families)
            products = layer._candidate_products(source, error, families, experts, *compared)
            with torch.enable_grad(), without_autocast(products.device):
                scores = gate._ranked_scores(experts)
                scores = scores if self.pixels is None else scores.index_select(1, self.pixels)
            gradient, size = _gradient(scores.detach()[None], products, temperature, layer, families)
            found = torch.autograd.grad(scores, numbers, gradient[0].to(scores.dtype), allow_unused=True)
            for place, values in enumerate(found):
                if values is not None:
                    values = values * size
                    total[place] = values if total[place] is None else total[place].add_(values)
        return total


def _is_asked(tensor: torch.Tensor) -> bool:
    """Whether the backward pass that is going on computes the gradient of a tensor."""
    try:
        return torch._C._will_engine_execute_node(torch.autograd.graph.get_gradient_edge(tensor).node)  # pyright: ignore[reportAttributeAccessIssue]
    except RuntimeError:  # of a leaf whose gradient `torch.autograd.grad` returns
        return True


class _FamiliesWithScores(torch.autograd.Function):
    """The same for compiled passes: the scores were computed in the forward pass and receive the gradient."""

    @staticmethod
    def forward(ctx, selected, scores, source, layer, learner, part, *compared):
        ctx.save_for_backward(scores, source[part], *compared)
        ctx.layer, ctx.part, ctx.temperature, ctx.num_compared = layer, part, learner.rule.temperature, len(compared)
        return selected.detach()

    @staticmethod
    def backward(ctx, *grad_outputs):
        (error,) = grad_outputs
        scores, source, *compared = ctx.saved_tensors
        X, E = ctx.layer.gate.num_experts, ctx.layer.gate.num_selected
        products = ctx.layer._candidate_products(source, error[ctx.part], slice(0, E), slice(0, X), *compared)
        gradient, size = _gradient(scores, products, ctx.temperature, ctx.layer, slice(0, E))
        return error, (gradient * size).to(scores.dtype), *(None,) * (4 + ctx.num_compared)


def _gradient(
    scores: torch.Tensor,
    products: torch.Tensor,
    temperature: float,
    layer: RoutedLayer,
    families: slice,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient at the scores `(1, X', P)` of some families, and a scalar factor that it lacks."""
    gradient, size = relative_family_gradient(scores, products, families.stop - families.start, temperature)
    # The gradient is 0 where its size is not finite.
    layer._signal.num_nonfinite.add_(size.isfinite().logical_not())
    return gradient, torch.where(size.isfinite(), size, 0.0)
