"""Checks of the arguments and inputs of layers on a grid."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from numbers import Integral
from typing import Self

import torch
from torch import nn

from smoe._notebook import html_text
from smoe.nn._gate import SpatialGate
from smoe.nn._learner import Learner, Setting, Step, make_learner, output_under_transforms, refuse_vmap
from smoe.nn._shared_parameters import is_freed, is_sharded, refuse_gate_apart, save_once
from smoe.ops._classification import ErrorSignal
from smoe.ops._conv_kernels import output_grid
from smoe.ops._families import ALL_FAMILIES
from smoe.ops._operators import has_transforms
from smoe.ops._routing import Routing, RoutingMap, mark_unranked, weigh
from smoe.options import PADDING_MODES, Order, PaddingMode
from smoe.rules import Damping, Frozen, Rule, resolve_damping, resolve_rule


def check_spatial_shape(spatial_shape: tuple[int, int]) -> tuple[int, int]:
    """The rows and columns of an output grid."""
    shape = tuple(int(size) for size in spatial_shape)
    if len(shape) != 2 or min(shape) < 1:
        raise ValueError(f"spatial_shape must be (rows, columns) of the output grid, not {spatial_shape}")
    return shape[0], shape[1]


def check_grid(spatial_shape: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of a grid with any number of axes; nodes of a graph have one."""
    shape = tuple(int(size) for size in spatial_shape)
    if not shape or min(shape) < 1:
        raise ValueError(f"spatial_shape must be the sizes of the output grid, not {tuple(spatial_shape)}")
    return shape


def check_kernel_size(kernel_size: int | tuple[int, int]) -> tuple[int, int]:
    """The rows and columns of a kernel that keeps the grid: both odd."""
    sizes = (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
    if len(sizes) != 2:
        raise ValueError(f"kernel_size must be one number or (rows, columns), got {kernel_size}")
    if min(sizes) < 1 or sizes[0] % 2 == 0 or sizes[1] % 2 == 0:
        raise ValueError(f"kernel_size must be odd, so that padding keeps the grid, got {kernel_size}")
    return sizes


def check_padding_mode(padding_mode: PaddingMode) -> PaddingMode:
    """The padding mode, if there is one of that name."""
    if padding_mode not in PADDING_MODES:
        raise ValueError(f"padding_mode must be one of {', '.join(PADDING_MODES)}, got {padding_mode!r}")
    return padding_mode


def check_positive(**numbers: int) -> None:
    """Refuses what is no integer of at least 1, by its name."""
    for name, number in numbers.items():
        if not isinstance(number, Integral):
            raise ValueError(f"{name} must be an integer, got {number!r}")
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")


def check_input(input: torch.Tensor, in_channels: int) -> None:
    """Refuses what is not a batch of grids with the layer's channels."""
    if input.ndim != 4 or input.shape[1] != in_channels:
        raise ValueError(f"input must be (B, {in_channels}, H, W), got shape {tuple(input.shape)}")


def check_output_grid(input: torch.Tensor, stride: int, spatial_shape: tuple[int, ...]) -> None:
    """Refuses an input whose output grid is not the one the layer was made for."""
    grid = output_grid(input.shape[2], input.shape[3], stride)
    if grid != spatial_shape:
        wanted = tuple(size * stride for size in spatial_shape)
        raise ValueError(
            f"the layer was made for an output grid of {spatial_shape}, that of inputs of {wanted}, but an input of "
            f"{tuple(input.shape[2:])} at stride {stride} has the output grid {grid}: resize the input, or the layers "
            "by smoe.interpolate_grids"
        )


class RoutedLayer(nn.Module, ABC):
    """A layer whose gate selects experts at each pixel and learns inside the layer's backward pass.

    In training mode the error signal that reaches the layer trains the gate by the layer's rule. In evaluation mode the
    gradients are those of the function that is computed.

    Args:
        gate: Gate that selects the experts. A gate given to several layers is shared by them and receives the sum of
            their gradients.
        expert_channels: F, the number of outputs per expert.
        weighted: Multiply the experts' outputs by their scores.
        rule: How the gate learns: a rule of `smoe.rules` or its short form.
        damping: Damping of the experts' error; None for that of the rule, which is none but for the paper's presets.
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
        self.expert_channels = expert_channels
        self.weighted = weighted
        self.damping = resolve_damping(damping)
        # The number of non-finite errors is no buffer: each process counts its own, and DistributedDataParallel would
        # overwrite a buffer by that of process 0.
        self.signal = ErrorSignal(device)
        self._is_loss_tracked = False
        self._last_routing: Routing | None = None
        rule = resolve_rule(rule)
        if gate.memory is not None and rule.learner == gate.memory.rule.learner and rule != gate.memory.rule:
            raise ValueError(
                f"layers that share a gate decide together: this one is to have the rule {rule}, another has "
                f"{gate.memory.rule}; give all of them the same"
            )
        self.learner: Learner = make_learner(rule, Setting(gate, weighted, device))
        self._let_learn(self.learner)
        save_once(self, "gate")
        self.register_load_state_dict_post_hook(_leave_meta_device)
        self.register_load_state_dict_post_hook(_plan_routing)

    @property
    def rule(self) -> Rule:
        """How the gate learns. Assigning another rule takes effect with the next forward pass; its state starts anew.

        The straight-through rule goes on counting its passes if only its numbers change, as in a schedule:
        `layer.rule = dataclasses.replace(layer.rule, temperature=0.5)`. Layers that share a gate need the same rule, or
        `Frozen`, when they run.
        """
        return self.learner.rule

    @rule.setter
    def rule(self, rule: Rule | str) -> None:
        rule = resolve_rule(rule)
        if rule == self.learner.rule:
            return
        # The new learner first: if it refuses the layer, the old one goes on with all it has learned.
        new = make_learner(rule, Setting(self.gate, self.weighted, self.signal.loss_scale.device))
        new.continue_from(self.learner)
        old, self.learner = self.learner, new.train(self.training)
        self._let_learn(new)
        self.gate.leave(old)

    def freeze(self) -> Self:
        """Ends the learning of the gate; the experts go on learning. The same as `layer.rule = "frozen"`.

        See `smoe.freeze` for a copy of a network that computes no scores any more.
        """
        self.rule = Frozen()
        return self

    def replace_gate(self, gate: SpatialGate) -> None:
        """Gives the layer another gate of the same numbers of experts and the same order; the rule starts anew.

        Args:
            gate: The new gate.
        """
        numbers = ("num_experts", "num_selected", "order", "spatial_shape")
        old, new = ({name: getattr(each, name) for name in numbers} for each in (self.gate, gate))
        if old != new:
            raise ValueError(f"the new gate has {new}, but the layer needs {old}")
        learner = make_learner(self.rule, Setting(gate, self.weighted, self.signal.loss_scale.device))
        self.gate.leave(self.learner)
        self.gate, self.learner = gate, learner.train(self.training)
        self._let_learn(learner)
        self.plan_routing()

    def plan_routing(self) -> None:
        """Called when a decided routing, or the place of the layer, may be another: after loading, moving, copying."""

    def _let_learn(self, learner: Learner) -> None:
        self.gate.join(learner, trains_scores=learner.trains_scores, make_memory=lambda: learner.make_memory(self.gate))

    @property
    def active_damping(self) -> Damping | None:
        """The damping in force: the layer's own, or that of its rule."""
        return self.rule.carried_damping if self.damping is None else self.damping

    @property
    def order(self) -> Order:
        """Order of the selected experts: `families`, `score` or `index`."""
        return self.gate.order

    @property
    def num_experts(self) -> int:
        """X, the number of experts in the bank."""
        return self.gate.num_experts

    @property
    def num_selected(self) -> int:
        """E, the number of experts selected at each pixel."""
        return self.gate.num_selected

    @property
    def num_nonfinite_errors(self) -> torch.Tensor:
        """Number of backward passes whose error was not finite; the gate's gradient was zero in these."""
        return self.signal.num_nonfinite

    @property
    def last_routing(self) -> Routing | None:
        """Routing of the last forward pass in training mode; the auxiliary losses are made of it."""
        routing = self._last_routing
        if routing is not None and is_sharded(self.gate) and is_freed(routing.scores):
            raise RuntimeError(
                "the scores of the last routing were freed, because FSDP has sharded the gate again; read them between "
                "the forward and the backward pass, and shard with reshard_after_forward=False"
            )
        if routing is not None and not routing.has_scores:
            routing = self._last_routing = self.gate(None)._replace(indices=routing.indices)
        return routing

    def routing(self, input: torch.Tensor | None = None) -> RoutingMap:
        """What the gate decides, in the shape of its grid.

        Args:
            input: Input of the layer, `(B, C, *grid)`; needed only by a gate that looks at it.

        Returns:
            `indices` and `weights`, `(E, *grid)`, or `(B, E, *grid)` for a gate that looks at its input.
        """
        routing = self.gate(input)
        grid = self.gate.spatial_shape or self.output_grid(input)
        indices, weights = (part.unflatten(2, grid) for part in (routing.indices.long(), routing.weights))
        if self.gate.looks_at_input or len(indices) > 1:
            return RoutingMap(indices, weights)
        return RoutingMap(indices[0], weights[0])

    def _repr_html_(self) -> str:
        text = html_text(repr(self))
        is_fixed = not self.gate.looks_at_input and self.gate.spatial_shape is not None and not is_sharded(self.gate)
        return text + self.routing()._repr_html_() if is_fixed else text

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, C, *grid)` to `(B, E * F, *grid)`; channels `[s * F, (s + 1) * F)` are each pixel's s-th expert."""
        self.check_input(input)
        return self.respond(input, self.route(input))

    def route(self, input: torch.Tensor, *, needs_scores: bool = False) -> Routing:
        """The routing of a pass; in training mode, the rule may select other experts than the gate.

        Args:
            input: `(B, C, *grid)`.
            needs_scores: Whether the rule needs the scores of all experts, however many they are.
        """
        if not torch.compiler.is_compiling():
            refuse_gate_apart(self, self.gate)
        if self.training and torch.is_grad_enabled():
            needs_scores = needs_scores or self.weighted or self.active_damping is not None
            if has_transforms():
                refuse_vmap(self.learner)
                needs_scores = True
            return self.learner.route(self.gate, input, self, needs_scores=needs_scores)
        return self.gate.route(input, self) if self.weighted else self.gate.decide(input, self)

    def respond(self, input: torch.Tensor, routing: Routing) -> torch.Tensor:
        """The output for a routing; in training mode its backward pass trains the gate.

        Args:
            input: `(B, C, *grid)`.
            routing: Routing of the pixels of the input.
        """
        is_training_step = self.training and torch.is_grad_enabled()
        output = self._train(input, routing) if is_training_step else self._compute(input, routing)
        if self.training:
            self._last_routing = routing
        return mark_unranked(output, routing)

    def check_input(self, input: torch.Tensor) -> None:
        """Refuses an input that the layer cannot work on.

        Raises:
            TypeError: If the input is no tensor.
            ValueError: If the input is not floating-point.
        """
        if not isinstance(input, torch.Tensor):
            raise TypeError(
                f"input must be a torch.Tensor, got {type(input).__module__}.{type(input).__name__}: give "
                "torch.as_tensor(input)"
            )
        if not input.is_floating_point():
            raise ValueError(f"{type(self).__name__} needs a floating-point input, got {input.dtype}")

    def _compute(self, input: torch.Tensor, routing: Routing) -> torch.Tensor:
        selected = self.select(self.prepare(input), routing.indices)
        return weigh(selected, routing.weights, self.expert_channels) if self.weighted else selected

    def _train(self, input: torch.Tensor, routing: Routing) -> torch.Tensor:
        step = self._step(self.prepare(input), routing)
        if has_transforms():
            output = output_under_transforms(
                self.learner,
                step,
                {name: value for name, value in self._parameters.items() if value is not None},
                # A function has no side effects: experts stay as they are.
                lambda *parts, **parameters: self._step(*parts, **parameters)._replace(restart_experts=None),
            )
        else:
            output = self.learner.output(step)
        if output.dtype == torch.float16:
            self._warn_of_untracked_loss()
        return output

    def _step(self, source: torch.Tensor, routing: Routing, **parameters: torch.Tensor) -> Step:
        """A forward pass, which keeps its parameters: `functional_call` takes them away before the backward pass."""
        bank = self
        if not torch.compiler.is_compiling():
            bank = object.__new__(type(self))
            kept = {**self._parameters, **parameters}
            # Without the last routing, whose scores would live on with it.
            vars(bank).update(self.__dict__, _parameters=kept, _last_routing=None)
        return Step(
            gate=self.gate,
            routing=routing,
            source=source,
            select=bank.select,
            candidate_products=bank.candidate_products,
            restart_experts=self.restart_experts,
            expert_channels=self.expert_channels,
            fan_in=self.fan_in,
            weighted=self.weighted,
            signal=self.signal,
            damping=self.active_damping,
        )

    @property
    def fan_in(self) -> int:
        """Numbers of what `prepare` returns that an output is made of: one of the outputs of all experts."""
        return 1

    def prepare(self, input: torch.Tensor) -> torch.Tensor:
        """What the experts work on, `(B, ...)`: the input itself, if single experts can be computed."""
        return input

    @abstractmethod
    def select(self, source: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Computes the outputs `(B, E' * F, *grid)` of experts `(1 or B, E', P)` from what `prepare` returned."""

    @abstractmethod
    def candidate_products(
        self, source: torch.Tensor, error: torch.Tensor, families: slice = ALL_FAMILIES
    ) -> torch.Tensor:
        """The product of error and output of each expert, summed over samples and outputs.

        Args:
            source: What `prepare` returned, of some samples `(B', ...)`.
            error: Error signal of these samples, `(B', E * F, *grid)`; slot s compares the experts of family s.
            families: Families to compare; all of them, or some, where the products of all would be large.

        Returns:
            `(1, X, P)`, or `(1, X', P)` for the experts of these families. Where the layer is not weighted, a number
            for each family and pixel may be missing.
        """

    @abstractmethod
    def output_grid(self, input: torch.Tensor | None) -> tuple[int, ...]:
        """Grid of the output for an input."""

    def restart_experts(self, sources: torch.Tensor, generator: torch.Generator) -> None:
        """Makes experts slightly changed copies of others, if single experts of the layer can be told apart.

        Args:
            sources: For each expert the one that it becomes a copy of, `(X,)`; its own number leaves it as it is.
            generator: Generator of the change, on the CPU.
        """

    def notice_tracked_loss(self) -> None:
        """Records that `track_loss_scale` is in use."""
        if not self._is_loss_tracked:  # an assignment to a module is slow
            self._is_loss_tracked = True

    def _warn_of_untracked_loss(self) -> None:
        # In the first pass the loss does not exist yet.
        if self._last_routing is not None and not self._is_loss_tracked and not torch.compiler.is_compiling():
            self._is_loss_tracked = True
            warnings.warn(
                "an SMoE layer trains in float16 without knowing the loss scale: its gate would learn from a scaled "
                "error; wrap the loss in smoe.nn.track_loss_scale(loss, model)",
                stacklevel=3,
            )

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        # The device only: `.half()` must not round the loss scale.
        self._move_signal(fn(self.signal.num_nonfinite).device)
        self.plan_routing()
        return self

    def _move_signal(self, device: torch.device) -> None:
        if self.signal.num_nonfinite.is_meta and device.type != "meta":
            self.signal = ErrorSignal(device)
        else:
            self.signal.to(device)

    def __getstate__(self) -> dict[str, object]:
        # The last routing belongs to a graph of the past, which can be neither copied nor pickled.
        return {**self.__dict__, "_last_routing": None}

    def extra_repr(self) -> str:
        """The numbers that `repr` shows."""
        weighted = "weighted=True, " if self.weighted else ""
        damping = "" if self.damping is None else f", damping={str(self.damping)!r}"
        return f"{weighted}rule={str(self.rule)!r}{damping}"


def _leave_meta_device(layer: RoutedLayer, incompatible_keys: object) -> None:
    """Load hook: a layer that was made on the meta device has been given parameters on another (`assign=True`)."""
    del incompatible_keys
    parameter = next(layer.parameters(), None)
    if parameter is not None:
        layer._move_signal(parameter.device)


def _plan_routing(layer: RoutedLayer, incompatible_keys: object) -> None:
    """Load hook: the routing may be another."""
    del incompatible_keys
    layer.plan_routing()
