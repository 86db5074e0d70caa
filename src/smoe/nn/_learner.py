"""What every training rule does for a layer: the output of one training step, and its own state."""

from __future__ import annotations

import importlib
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from torch import nn
from torch._C._functorch import TransformType, get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters, temporarily_clear_interpreter_stack

from smoe.nn._gate import Memory, SpatialGate
from smoe.ops._classification import ErrorSignal
from smoe.ops._routing import Routing, weigh
from smoe.rules import Damping, Rule


class Setting(NamedTuple):
    """What a learner needs to know of its layer when it is made.

    Attributes:
        gate: Gate of the layer.
        weighted: Whether the experts' outputs are multiplied by their scores.
        device: Device of the learner's buffers.
    """

    gate: SpatialGate
    weighted: bool
    device: torch.device | str | None = None


class Step(NamedTuple):
    """One forward pass of a layer in training: the value that a learner works on.

    Attributes:
        gate: Gate of the layer.
        routing: Routing of this pass.
        source: What the experts work on, `(B, ...)`: the layer's input, or the outputs of all experts.
        select: Computes the outputs `(B, E' * F, *grid)` of experts `(1 or B, E', P)` from a source.
        candidate_products: Computes, from some samples of the source and of the error `(B', E * F, *grid)`, and a slice
            of the families, the product of error and output of each of their experts, `(1, X', P)`, summed over samples
            and outputs; up to a number for each family and pixel, unless the layer is weighted.
        restart_experts: Makes experts copies of others: for each the number of the one it copies, `(X,)`, and a random
            generator. None if the experts must stay as they are.
        expert_channels: F.
        fan_in: Numbers of the source that an output is made of; 1 if the source is the outputs of the experts.
        weighted: Whether the outputs are multiplied by the scores of their experts.
        signal: Loss scale and counter of non-finite errors of the layer.
        damping: Damping of the experts' error.
    """

    gate: SpatialGate
    routing: Routing
    source: torch.Tensor
    select: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    candidate_products: Callable[[torch.Tensor, torch.Tensor, slice], torch.Tensor]
    restart_experts: Callable[[torch.Tensor, torch.Generator], None] | None
    expert_channels: int
    fan_in: int
    weighted: bool
    signal: ErrorSignal
    damping: Damping | None

    def select_with(self, challengers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs of the selected experts `(B, E * F, *grid)`, and of others `(B, F, *grid)` without a gradient.

        Args:
            challengers: An expert that is not selected for each pixel, `(1, 1, P)`, int32.
        """
        indices = self.routing.indices
        if not _may_compute_bank(self.source):
            selected = self.select(self.source, indices)
            with torch.no_grad():
                return selected, self.select(self.source, challengers)
        together = self.select(self.source, torch.cat((indices, challengers.expand(len(indices), -1, -1)), dim=1))
        num_selected = indices.shape[1] * self.expert_channels
        return together[:, :num_selected], together[:, num_selected:].detach()

    def gradient_unit(self, source: torch.Tensor, error: torch.Tensor, batch: int) -> torch.Tensor:
        """Unit of a gradient at the scores by which that of the gate is hardly larger than that of the experts.

        Were errors independent of inputs, the gradient of the experts' weights would have the norm of the error times
        the root mean square of the input times the root of the fan-in; errors that the experts can still reduce add to
        it. A gradient at the scores in units of the spread is at most about half a unit at each. The unit changes
        slowly in the course of a training, so that optimisers that divide by the size of a gradient, as Adam does,
        learn alike.

        Args:
            source: Some samples of the source, `(B', ...)`.
            error: Error of these samples.
            batch: Number of all samples.

        Returns:
            A scalar; 0 where the error is not finite.
        """
        of_source, of_error = (
            torch.linalg.vector_norm(part, dtype=torch.promote_types(part.dtype, torch.float32)).double()
            for part in (source, error)
        )
        num_scores = self.gate.num_experts * error.shape[2:].numel()
        factor = 2.0 * math.sqrt(self.fan_in * batch / max(1, source.numel() * len(error) * num_scores))
        unit = of_source * of_error * (factor / self.gate.gradient_gain)
        return torch.where(unit.isfinite(), unit, 0.0)

    def weighed(self, selected: torch.Tensor) -> torch.Tensor:
        """The outputs times their weights, if the layer is weighted; the weights receive no gradient."""
        if not self.weighted:
            return selected
        return weigh(selected, self.routing.weights.detach(), self.expert_channels)


def _may_compute_bank(source: torch.Tensor) -> bool:
    """Whether all experts may be computed to select some: then it should be done once. A CPU's kernels never do."""
    return source.device.type != "cpu"


class Learner(Memory):
    """Trains the gate of a layer within the layer's own forward and backward passes.

    A learner belongs to one layer and works on one `Step` at a time. State that layers share with a gate is a `Memory`
    of the gate.

    Args:
        rule: Rule that made the learner.
        setting: Gate and options of the layer, for a subclass to check; not kept.
        *counters: Names of the counters.
    """

    trains_scores: ClassVar[bool] = True
    """Whether the scores of the gate receive gradients that are to be followed by an optimiser."""

    def __init__(self, rule: Rule, setting: Setting, *counters: str) -> None:
        del setting
        super().__init__(rule, *counters)

    @abstractmethod
    def output(self, step: Step) -> torch.Tensor:
        """Computes the layer's output `(B, E * F, *grid)`, and arranges that its backward pass trains the gate."""

    def route(self, gate: SpatialGate, input: torch.Tensor, layer: nn.Module, *, needs_scores: bool) -> Routing:
        """The routing of a training pass: what the gate decides, unless the rule selects otherwise.

        Args:
            gate: Gate of the layer.
            input: Input of the layer.
            layer: The layer.
            needs_scores: Whether the layer needs the scores of the experts, because it is weighted or damps errors.
        """
        del needs_scores
        return gate.route(input, layer)

    def continue_from(self, previous: Learner) -> None:
        """Takes over what the learner of the rule before has counted, if it means the same here: nothing by default."""

    def make_memory(self, gate: SpatialGate) -> Memory | None:
        """Makes the memory that all layers with this rule share through their gate; None if the rule needs none."""
        del gate
        return None

    def extra_repr(self) -> str:
        """The rule."""
        return str(self.rule)


def make_learner(rule: Rule, setting: Setting) -> Learner:
    """The learner that a rule names.

    Raises:
        ValueError: If the rule names none, or the layer does not suit it.
    """
    kind = rule.learner
    if isinstance(kind, str):
        module, _, name = kind.partition(":")
        kind = getattr(importlib.import_module(module), name)
    if not (isinstance(kind, type) and issubclass(kind, Learner)):
        raise ValueError(f"the rule {type(rule).__name__} names no learner: set its class attribute `learner`")
    return kind(rule, setting)


def output_under_transforms(
    learner: Learner, step: Step, parameters: dict[str, torch.Tensor], rebuild: Callable[..., Step]
) -> torch.Tensor:
    """What `learner.output(step)` computes, for the functions of torch.func and for forward-mode differentiation.

    They differentiate the function that the layer computes. In reverse mode the scores receive what they receive in an
    ordinary backward pass: the learner then works on plain tensors, outside the transforms, and what it finds is a
    constant for them.

    Args:
        learner: Learner of the layer.
        step: The forward pass.
        parameters: The layer's own parameters in this pass.
        rebuild: Makes the step anew of source, routing and parameters by name, all of them plain tensors.
    """
    if step.damping is not None:
        raise RuntimeError(
            "the damping of errors is no derivative, and torch.func and forward-mode differentiation know no other: "
            "call layer.eval(), or use loss.backward() or torch.autograd.grad"
        )
    selected = step.weighed(step.select(step.source, step.routing.indices))
    scores, indices = step.routing.scores, step.routing.indices
    if not learner.trains_scores or step.gate.num_selected == step.gate.num_experts:
        return selected
    return _OutputUnderTransforms.apply(
        selected, scores, learner, rebuild, tuple(parameters), step.weighted, indices, step.source, *parameters.values()
    )  # type: ignore[return-value]


class _OutputUnderTransforms(torch.autograd.Function):
    @staticmethod
    def forward(selected, *others):  # pyright: ignore[reportIncompatibleMethodOverride]
        del others
        return selected.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        del output
        _, scores, ctx.learner, ctx.rebuild, ctx.names, ctx.weighted, *others = inputs
        ctx.save_for_backward(scores, *others)
        ctx.set_materialize_grads(False)
        ctx.num_others = len(inputs) - 2

    @staticmethod
    def backward(ctx, *grad_outputs):
        (error,) = grad_outputs
        with temporarily_clear_interpreter_stack(), torch.enable_grad():
            plain_error, scores, indices, source, *values = map(_plain, (error, *ctx.saved_tensors))
            scores.requires_grad_()
            parameters = dict(zip(ctx.names, values, strict=True))
            step = ctx.rebuild(source, Routing(indices, scores, scores, scores), **parameters)
            output = ctx.learner.output(step)
            (gradient,) = torch.autograd.grad(output, scores, plain_error, allow_unused=True)
        return error, gradient, *(None,) * ctx.num_others

    @staticmethod
    def jvp(ctx, *tangents):
        if ctx.weighted and tangents[1] is not None:
            raise RuntimeError(
                "in training mode the scores of a weighted layer have no derivative in forward mode: call layer.eval()"
            )
        return tangents[0]


_NO_VMAP = (
    "the gate of an SMoE layer learns within the backward pass, which torch.func.vmap (and jacrev, jacfwd and hessian, "
    "which use it) cannot divide among samples or networks: call layer.eval() or layer.freeze() first"
)


def refuse_vmap(learner: Learner) -> None:
    """Raises an error if vmap is active and the learner would have to learn under it.

    Raises:
        RuntimeError: If the learner trains the scores and one of the active transforms is vmap.
    """
    transforms = retrieve_all_functorch_interpreters() if learner.trains_scores else []
    if any(transform.key() == TransformType.Vmap for transform in transforms):
        raise RuntimeError(_NO_VMAP)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor below the wrappers of torch.func; they must be switched off."""
    while is_functorch_wrapped_tensor(tensor):
        if is_batchedtensor(tensor):
            raise RuntimeError(_NO_VMAP)
        tensor = get_unwrapped(tensor)
    return tensor.detach()
