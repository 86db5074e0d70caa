"""What the layers of every geometry are: a bank of experts, a gate, and a learner that trains it by a rule."""

from __future__ import annotations

import importlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import nn
from torch.nn.utils import parametrize

from smoe._notebook import html_routing, html_text
from smoe.nn._gate import SpatialGate
from smoe.nn._shared_parameters import CopiedModule, StatefulModule, is_sharded, save_once
from smoe.ops._classification import train_routing
from smoe.ops._conv_kernels import output_grid
from smoe.ops._layer_call import Lesson
from smoe.ops._operators import has_transforms, is_observed
from smoe.ops._routing import ErrorSignal, Routing, RoutingMap, weigh
from smoe.options import PADDING_MODES, PaddingMode
from smoe.rules import Damping, Frozen, Rule, resolve_damping, resolve_rule


def check_kernel_size(kernel_size: int | tuple[int, int]) -> tuple[int, int]:
    """The rows and columns of a kernel that keeps the grid: both odd."""
    sizes = (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
    if len(sizes) != 2:
        raise ValueError(f"kernel_size must be one number or (rows, columns), got {kernel_size}")
    if min(sizes) < 1 or sizes[0] % 2 == 0 or sizes[1] % 2 == 0:
        raise ValueError(f"kernel_size must be odd, so that padding keeps the grid, got {kernel_size}")
    return sizes


def check_padding_mode(padding_mode: PaddingMode) -> PaddingMode:
    if padding_mode not in PADDING_MODES:
        raise ValueError(f"padding_mode must be one of {', '.join(PADDING_MODES)}, got {padding_mode!r}")
    return padding_mode


def check_positive(**numbers: int) -> None:
    """Raises a ValueError with the name of a number that is not an integer of at least 1."""
    for name, number in numbers.items():
        if not isinstance(number, Integral):
            raise ValueError(f"{name} must be an integer, got {number!r}")
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")


def check_output_grid(input: torch.Tensor, stride: int, spatial_shape: tuple[int, ...]) -> None:
    grid = output_grid(input.shape[2], input.shape[3], stride)
    if grid != spatial_shape:
        wanted = tuple(size * stride for size in spatial_shape)
        raise ValueError(
            f"the layer was made for an output grid of {spatial_shape}, that of inputs of {wanted}, but an input of "
            f"{tuple(input.shape[2:])} at stride {stride} has the output grid {grid}: resize the input, or the layers "
            "by smoe.interpolate_grids"
        )


def as_leaf(layer: nn.Module, input: Any) -> Any:
    """The call of a layer as one node, for the proxies of torch.fx: what happens inside depends on the input."""
    tracer = input.tracer
    return tracer.create_proxy("call_module", tracer.path_of_module(layer), (input,), {})


class RoutedLayer(CopiedModule, ABC):
    """A layer whose gate selects experts at each pixel and learns inside the layer's backward pass.

    In training mode the error signal that reaches the layer trains the gate by the layer's rule. In evaluation mode the
    gradients are those of the function that is computed.

    Args:
        gate: Gate that selects the experts. A gate given to several layers is shared by them and learns from all.
        expert_channels: F, the number of outputs per expert.
        weighted: Multiply the experts' outputs by their scores.
        rule: How the gate learns: a rule of `smoe.rules` or its short form.
        damping: Damping of the experts' error; None for that of the rule; only the paper's presets have one.
        device: Device of the layer's state.
    """

    def __init__(
        self,
        gate: SpatialGate,
        expert_channels: int,
        weighted: bool,
        rule: Rule | str,
        damping: Damping | str | float | None,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        check_positive(expert_channels=expert_channels)
        self.gate = gate
        self._expert_channels = expert_channels
        self._weighted = weighted
        # Not a buffer: each process counts its own non-finite errors, and DistributedDataParallel would overwrite a
        # buffer by that of process 0.
        self._signal = ErrorSignal(device)
        self._is_loss_tracked = False
        self._last_routing: Routing | None = None
        rule = resolve_rule(rule)
        self._damping = resolve_damping(damping)
        self._learner: Learner = make_learner(rule, self)
        self._settle_damping()
        gate._join(self, self._learner)
        save_once(self, "gate")
        self.register_load_state_dict_post_hook(_follow_loading)

    @property
    def rule(self) -> Rule:
        """How the gate learns. Assigning another rule takes effect with the next forward pass, and resets its state.

        The straight-through rule goes on if only its numbers change, as in a schedule:
        `layer.rule = dataclasses.replace(layer.rule, temperature=0.5)`. Once it has made the numbers of a gate buffers,
        only `Frozen` can follow it. Layers that share a gate need the same rule, or `Frozen`, when they run.
        """
        return self._learner.rule

    @rule.setter
    def rule(self, rule: Rule | str) -> None:
        rule = resolve_rule(rule)
        if rule == self._learner.rule:
            return
        # The new learner first: if it refuses the layer, the old one goes on with all it has learned.
        new = make_learner(rule, self)
        new.continue_from(self._learner)
        self.gate._join(self, new)
        self._learner = new.train(self.training)
        self._settle_damping()

    @property
    def damping(self) -> Damping | None:
        """Damping of the error of wrongly selected experts; None for that of the rule."""
        return self._damping

    @damping.setter
    def damping(self, damping: Damping | str | float | None) -> None:
        self._damping = resolve_damping(damping)
        self._settle_damping()

    def _settle_damping(self) -> None:
        """Notes the damping in force, and whether a pass needs the scores of the experts."""
        self._active_damping = self.rule.carried_damping if self._damping is None else self._damping
        self._needs_scores = self._weighted or self._active_damping is not None

    def freeze(self) -> Self:
        """Ends the learning of the gate; the experts go on learning. The same as `layer.rule = "frozen"`.

        See `smoe.freeze` for a copy of a network that computes no scores any more.
        """
        self.rule = Frozen()
        return self

    def _replace_gate(self, gate: SpatialGate) -> None:
        """Gives the layer another gate with the same numbers of experts and order, and resets the rule's state."""
        numbers = ("num_experts", "num_selected", "order", "spatial_shape")
        old, new = ({name: getattr(each, name) for name in numbers} for each in (self.gate, gate))
        if old != new:
            raise ValueError(f"the new gate has {new}, but the layer needs {old}")
        self.gate._leave(self)
        self.gate = gate
        self._learner = make_learner(self.rule, self).train(self.training)
        gate._join(self, self._learner)
        self._forget_input()

    def _forget_input(self) -> None:
        """Called when inputs that were accepted may not be any more: after loading, moving, another gate."""

    def _scored_routing(self) -> Routing | None:
        """Routing of the last forward pass in training mode, with scores; the auxiliary losses are made of it."""
        routing = self._last_routing
        if routing is None:
            return None
        if not routing.has_scores:
            routing = self._last_routing = self.gate(None)._replace(indices=routing.indices)
        elif is_sharded(self.gate) and routing.scores.untyped_storage().size() == 0:
            raise RuntimeError(
                "the scores of the last routing were freed, because FSDP has sharded the gate again; read them between "
                "the forward and the backward pass, and shard with reshard_after_forward=False"
            )
        return routing

    def routing(self, input: torch.Tensor | None = None) -> RoutingMap:
        """What the gate decides, in the shape of its grid.

        Args:
            input: Input of the layer, `(B, C, *grid)`; needed only by a gate that looks at it.

        Returns:
            `indices` and `weights`, `(E, *grid)`, or `(B, E, *grid)` for a gate that looks at its input.
        """
        self._begin_pass()
        routing = self.gate(input)
        grid = self.gate.spatial_shape or self._output_grid(input)
        indices, weights = (part.unflatten(2, grid) for part in (routing.indices.long(), routing.weights))
        if self.gate.looks_at_input or len(indices) > 1:
            return RoutingMap(indices, weights)
        return RoutingMap(indices[0], weights[0])

    def plot(self, path: str | Path | None = None, **options: Any) -> Any:
        """Draw the routing by `smoe.plot_routing`, whose options these are; a notebook shows the figure."""
        # By name: pictures stand above the layers, and need matplotlib.
        return importlib.import_module("smoe").plot_routing(self, path, **options)

    def _repr_html_(self) -> str:
        text = html_text(f"{type(self).__name__}({self.extra_repr()})")
        is_fixed = not self.gate.looks_at_input and self.gate.spatial_shape is not None and not is_sharded(self.gate)
        # Here it is known that the first dimension is that of the experts, also of a volume.
        return text + html_routing(self.routing().indices.cpu().numpy(), self.gate.num_experts) if is_fixed else text

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, C, *grid)` to `(B, E * F, *grid)`; channels `[s * F, (s + 1) * F)` are each pixel's s-th expert."""
        self._check_input(input)
        return self._run(input)

    def _run(self, input: torch.Tensor, pixels: torch.Tensor | None = None) -> torch.Tensor:
        """The output for an input that was checked.

        Args:
            input: `(B, C, *grid)`, or `(B, C, P')` for some of the pixels.
            pixels: Numbers of these pixels, `(P',)`; None for all.
        """
        if "parametrizations" in self._modules and not parametrize._cache_enabled and not is_observed():
            with parametrize.cached():  # once in a pass, as in other layers: spectral norms count how often
                return self._run(input, pixels)
        if self.training:
            # The rule may select other experts than the gate.
            routing = self._learner.route(self, input)
        else:
            routing = self.gate.route(input) if self._weighted else self.gate._decide(input)
        if pixels is not None:
            routing = routing.at(pixels)
        else:
            output = self._fused_output(input, routing)
            if output is not None:
                return output
        return self._finish(self._respond(input, routing), pixels)

    def _fused_output(self, input: torch.Tensor, routing: Routing) -> torch.Tensor | None:
        """The output by one kernel in each direction; None where it is made step by step."""
        del input, routing

    def _respond(self, input: torch.Tensor, routing: Routing) -> torch.Tensor:
        """The outputs of the selected experts; in training mode their backward pass trains the gate."""
        source = self._prepare(input)
        if self.training:
            self._observe(source)
        if self.training and torch.is_grad_enabled():
            if has_transforms():
                output = self._output_under_transforms(source, routing)
            else:
                output = self._learner.output(Step(self, source, routing))
            if output.dtype == torch.float16:
                self._warn_of_untracked_loss()
        else:
            output = self._select(source, routing.indices)
            if self._weighted:
                output = weigh(output, routing.weights, self._expert_channels)
        if self.training:
            self._last_routing = routing
        if routing.unranked is None:
            return output
        # A score that is not finite ranks last, and is seen where the loss is read.
        return output + routing.unranked.to(output.dtype).unflatten(2, output.shape[2:])

    def _observe(self, source: torch.Tensor) -> None:
        """Called with what the experts work on in each training pass."""

    def _finish(self, output: torch.Tensor, pixels: torch.Tensor | None) -> torch.Tensor:
        """What is done with the outputs of experts `(B, E * F, *grid)`, or of some pixels: nothing by default."""
        del pixels
        return output

    def _output_under_transforms(self, source: torch.Tensor, routing: Routing) -> torch.Tensor:
        """The function that the layer computes, which torch.func differentiates; the gate does not learn from it."""
        if self._learner.trains_scores and self.gate.num_selected < self.gate.num_experts:
            raise RuntimeError(
                f"the scores of a layer with the rule {self.rule} learn in backward passes, which torch.func and "
                "forward-mode differentiation do not make: call layer.eval(), or use loss.backward()"
            )
        if self._active_damping is not None:
            raise RuntimeError(
                "the damping of errors is not a derivative, which is all that torch.func and forward-mode "
                "differentiation compute: call layer.eval(), or use loss.backward()"
            )
        selected = self._select(source, routing.indices)
        return weigh(selected, routing.weights.detach(), self._expert_channels) if self._weighted else selected

    def __prepare_scriptable__(self) -> Self:
        raise TypeError(f"torch.jit.script cannot compile {type(self).__name__}: use torch.jit.trace or torch.export")

    def _check_input(self, input: torch.Tensor) -> None:
        """Refuses an input that the layer cannot work on.

        Raises:
            TypeError: If the input is not a tensor.
            ValueError: If the input is not floating-point.
        """
        if not isinstance(input, torch.Tensor):
            raise TypeError(
                f"input must be a torch.Tensor, got {type(input).__module__}.{type(input).__name__}: give "
                "torch.as_tensor(input)"
            )
        if not input.is_floating_point():
            raise ValueError(f"{type(self).__name__} needs a floating-point input, got {input.dtype}")

    def _trained_parameter(self) -> nn.Parameter | None:
        """A parameter beside those of the gate that requires gradients: without one, the gate does not learn."""
        of_gate = {id(parameter) for parameter in self.gate.parameters()}
        mine = (each for each in self.parameters() if each.requires_grad and id(each) not in of_gate)
        return next(mine, None)

    def _begin_pass(self) -> None:
        if self.gate.steps is not None:
            self.gate._begin_pass()

    def _prepare(self, input: torch.Tensor) -> torch.Tensor:
        """What the experts work on, `(B, ...)`: the input itself, if single experts can be computed."""
        return input

    @abstractmethod
    def _select(self, source: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Computes the outputs `(B, E' * F, *grid)` of experts `(1 or B, E', P)` from what `_prepare` returned."""

    def _select_compared(
        self, source: torch.Tensor, indices: torch.Tensor
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """The same, with tensors that `_candidate_products` needs, as they are in this pass."""
        return self._select(source, indices), ()

    def _family_gradient(
        self, source: torch.Tensor, error: torch.Tensor, temperature: float, *compared: torch.Tensor
    ) -> tuple[dict[int, torch.Tensor], bool] | None:
        """The gradients of the gate's parameters in one step, where there is a kernel for it.

        Arguments as for `_candidate_products`, and the temperature of the softmax of a family.

        Returns:
            Gradients by the identity of their tensors, and whether they are finite; they are 0 otherwise. None if the
            gradients are those of `_candidate_products`.
        """
        del source, error, temperature, compared
        return None

    @abstractmethod
    def _candidate_products(
        self, source: torch.Tensor, error: torch.Tensor, families: slice, experts: slice, *compared: torch.Tensor
    ) -> torch.Tensor:
        """The product of error and output of each expert, summed over samples and outputs.

        Args:
            source: What `_prepare` returned, of some samples `(B', ...)`.
            error: Error signal of these samples, `(B', E * F, *grid)`; slot s compares the experts of family s.
            families: Families to compare.
            experts: Numbers of their experts.
            *compared: What `_select_compared` returned beside the outputs.

        Returns:
            `(1, X', P)` for the experts of these families, less a number for each family and pixel.
        """

    @abstractmethod
    def _output_grid(self, input: torch.Tensor | None) -> tuple[int, ...]:
        """Grid of the output for an input."""

    def _notice_tracked_loss(self) -> None:
        if not self._is_loss_tracked:  # an assignment to a module is slow
            self._is_loss_tracked = True

    def _warn_of_untracked_loss(self) -> None:
        # In the first pass the loss does not exist yet.
        is_known = self._is_loss_tracked or self._learner.trains_alone or torch.compiler.is_compiling()
        if self._last_routing is not None and not is_known:
            self._is_loss_tracked = True
            warnings.warn(
                "an SMoE layer trains in float16 without knowing the loss scale: its gate would learn from a scaled "
                "error; wrap the loss in smoe.nn.track_loss_scale(loss, model)",
                stacklevel=3,
            )

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        # The device only: `.half()` must not round the loss scale.
        self._move_signal(fn(self._signal.num_nonfinite).device)
        self._forget_input()
        return self

    def _move_signal(self, device: torch.device) -> None:
        if self._signal.num_nonfinite.is_meta and device.type != "meta":
            self._signal = ErrorSignal(device)
        else:
            self._signal.to(device)

    def __getstate__(self) -> dict[str, object]:
        # The last routing belongs to a graph of the past, which can be neither copied nor pickled.
        return {**self.__dict__, "_last_routing": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.gate._join(self, self._learner)

    def extra_repr(self) -> str:
        weighted = "weighted=True, " if self._weighted else ""
        damping = "" if self.damping is None else f", damping={str(self.damping)!r}"
        return f"{weighted}rule={str(self.rule)!r}{damping}"


def _follow_loading(layer: RoutedLayer, incompatible_keys: object) -> None:
    """Load hook: a layer that was made on the meta device has been given parameters on another (`assign=True`)."""
    del incompatible_keys
    parameter = next(layer.parameters(), None)
    if parameter is not None:
        layer._move_signal(parameter.device)
    layer._forget_input()


class Step(NamedTuple):
    """One forward pass of a layer in training: the value that a learner works on.

    Attributes:
        layer: The layer.
        source: What the experts work on, `(B, ...)`: the layer's input, or the outputs of all experts.
        routing: Routing of this pass.
    """

    layer: RoutedLayer
    source: torch.Tensor
    routing: Routing

    def select(self, experts: torch.Tensor) -> torch.Tensor:
        """Outputs `(B, E' * F, *grid)` of experts `(1 or B, E', P)`."""
        return self.layer._select(self.source, experts)

    def weighed(self, selected: torch.Tensor) -> torch.Tensor:
        """The outputs times their weights, if the layer is weighted; the weights receive no gradient."""
        if not self.layer._weighted:
            return selected
        return weigh(selected, self.routing.weights.detach(), self.layer._expert_channels)

    def damped(self, selected: torch.Tensor) -> torch.Tensor:
        """The outputs, whose error is damped in the backward pass, if the layer damps errors."""
        layer = self.layer
        if layer._active_damping is None:
            return selected
        return train_routing(
            *(selected, self.routing),
            expert_channels=layer._expert_channels,
            signal=layer._signal,
            damping=layer._active_damping,
        )


class TrainGate(torch.autograd.Function):
    """Returns the selected outputs; in backward, the numbers of a lesson receive their gradients."""

    @staticmethod
    def forward(ctx, selected, source, lesson, *tensors):
        compared = tensors[: len(tensors) - len(lesson.numbers)]
        # The layer's input is saved by the experts too, so that it takes no memory.
        ctx.save_for_backward(*(source, *compared) if lesson.needs_source else ())
        ctx.lesson, ctx.num_compared = lesson, len(compared)
        return selected.detach()

    @staticmethod
    def backward(ctx, *grad_outputs):
        (error,) = grad_outputs
        source, *compared = ctx.saved_tensors or (error,)
        learned = ctx.lesson.learn(error, source, tuple(compared), None)
        return error, None, None, *(None,) * ctx.num_compared, *learned


class Learner(StatefulModule):
    """Trains the gate of a layer within the layer's own forward and backward passes.

    A learner belongs to one layer and works on one `Step` at a time.

    Args:
        rule: Rule that made the learner.
        layer: The layer, for a subclass to check; not kept.
        *counters: Names of the counters.
    """

    trains_scores: ClassVar[bool] = True
    """Whether the scores of the gate receive gradients that are to be followed by an optimiser."""

    trains_alone: ClassVar[bool] = False
    """Whether the gate takes steps of its own, when the optimiser of the layer steps."""

    def __init__(self, rule: Rule, layer: RoutedLayer, *counters: str) -> None:
        del layer
        super().__init__(*counters)
        self.rule = rule

    @abstractmethod
    def output(self, step: Step) -> torch.Tensor:
        """Computes the layer's output `(B, E * F, *grid)`, and arranges that its backward pass trains the gate."""

    def lesson(self, step: Step) -> Lesson | None:
        """What the gate learns of a layer that needs no scores; None where `output` makes other outputs."""
        del step
        return None

    def route(self, layer: RoutedLayer, input: torch.Tensor) -> Routing:
        """The routing of a training pass: what the gate decides, unless the rule selects otherwise."""
        return layer.gate.route(input)

    def continue_from(self, previous: Learner) -> None:
        """Takes over what the learner of the rule before has counted, if it means the same here: nothing by default."""

    def after_step(self, layer: RoutedLayer, *, is_taken: bool) -> None:
        """Called when the optimiser of the layer has stepped, of a gate that takes steps of its own.

        Args:
            layer: The layer.
            is_taken: Whether the gate has taken one.
        """

    def extra_repr(self) -> str:
        return str(self.rule)


def make_learner(rule: Rule, layer: RoutedLayer) -> Learner:
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
    return kind(rule, layer)
