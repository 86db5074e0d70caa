"""Banks of filters, and what layers and `convert` do where nothing else is asked for.

The defaults are those that learned best with equal budgets on data whose structure is known:
paper/results/bench/learn.md has the table, docs/rules.md the reasons. They need no number of the data, no length of the
training and no rate of the optimiser, and they are the same for every number of outputs:

- families of experts (`order="families"`), so that a channel keeps its meaning while the routing changes;
- a `FactorisedGate`, whose pixels learn from all pixels like them;
- the rule `StraightThrough`, which compares all candidates of a family, on a share of the samples, and steps by itself;
- equal experts in each family at the start, so that a new layer is a convolution, and a bias for each expert; experts
  of a single family, which compete for whole pixels, start at random;
- filters that work on the difference of the input from its mean in the first training pass;
- a learned scale and offset for each output channel and pixel.

The paper's layer is one argument away: `rule="rc"` selects the experts with the highest scores of a `TensorGate`.
"""

from __future__ import annotations

import importlib
import math
import warnings
from abc import abstractmethod
from collections.abc import Callable
from numbers import Integral
from typing import Any, Self, TypedDict

import torch
from torch import nn

from smoe.nn._gate import SpatialGate
from smoe.nn._gates import FactorisedGate, PixelEmbedding, TensorGate
from smoe.nn._routed_layer import RoutedLayer, Step, check_positive
from smoe.nn._shared_parameters import StatefulModule, at_least_float32, has_process_group
from smoe.ops._families import learn_factorised, slot_products
from smoe.ops._layer_call import Bank, BoundCall, LayerCall, mean_response
from smoe.ops._operators import has_library, has_transforms, is_observed, is_plain, library_for, num_threads
from smoe.ops._routed_conv import routed_conv
from smoe.ops._routing import Routing, family_members
from smoe.options import BIAS_OWNERS, BiasOwner, Order
from smoe.rules import Damping, Frozen, RoutingClassification, Rule, StraightThrough, resolve_rule


def resolve_default_rule(rule: Rule | str | None, gate: SpatialGate | None, order: Order | None) -> Rule:
    """The rule given, or the default one for a gate, or for an order if the gate is yet to be made."""
    if not (gate is None or isinstance(gate, SpatialGate)):
        raise TypeError(f"gate must be a gate such as smoe.FactorisedGate(...), got {type(gate).__name__}")
    if rule is not None:
        return resolve_rule(rule)
    order = gate.order if gate is not None else order or "families"
    is_comparable = order == "families" and not (gate is not None and gate.looks_at_input)
    return StraightThrough() if is_comparable else RoutingClassification()


def default_order(rule: Rule) -> Order:
    """The order of the selected experts for a rule: families where the rule compares the experts of a family."""
    return "families" if isinstance(rule, (StraightThrough, Frozen)) else "score"


def resolve_gate(
    gate: SpatialGate | None,
    rule: Rule,
    num_experts: int,
    num_selected: int,
    spatial_shape: tuple[int, ...] | None,
    expert_channels: int = 1,
    order: Order | None = None,
    embedding: PixelEmbedding | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> SpatialGate:
    """The gate given to a layer, checked against its numbers, or the default one made for them."""
    if gate is None:
        if spatial_shape is None and embedding is None:
            raise ValueError("give spatial_shape=, the sizes of the output grid, or a gate")
        order = order or default_order(rule)
        kwargs: dict[str, Any] = {"order": order, "device": device, "dtype": dtype}
        if order == "families" and isinstance(rule, (StraightThrough, Frozen)):
            return FactorisedGate(num_experts, num_selected, spatial_shape, embedding=embedding, **kwargs)
        if embedding is not None or spatial_shape is None:
            raise ValueError(f"embedding= is for the default gate of families, but the rule {rule} has another")
        return TensorGate(num_experts, num_selected, spatial_shape, expert_channels, **kwargs)
    if embedding is not None:
        raise ValueError("a gate has its own embedding: give gate= or embedding=")
    if (gate.num_experts, gate.num_selected) != (num_experts, num_selected):
        raise ValueError(
            f"the gate selects {gate.num_selected} of {gate.num_experts} experts, but the layer is to select "
            f"{num_selected} of {num_experts}"
        )
    made_for = gate.spatial_shape
    if spatial_shape is not None and made_for is not None and tuple(spatial_shape) != made_for:
        raise ValueError(f"the gate was made for a grid of {made_for}, but spatial_shape is {tuple(spatial_shape)}")
    if order is not None and order != gate.order:
        raise ValueError(f"the gate has order={gate.order!r}, but order is {order!r}; give it to the gate")
    return gate


def local_affine(input: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """`offset + scale * input` for `(B, ...)`, scale and offset `(...)` for all samples; gradients reach all three."""
    if torch.is_grad_enabled() and not is_observed() and library_for(input, scale, offset) is not None:
        return _LocalAffine.apply(input, scale, offset)  # type: ignore[return-value]
    return torch.addcmul(offset, input, scale)


class _LocalAffine(torch.autograd.Function):
    # PyTorch computes the three gradients one after the other, and stores the product of error and input.

    @staticmethod
    def forward(ctx, input, scale, offset):
        ctx.save_for_backward(input, scale)
        return torch.addcmul(offset, input, scale)

    @staticmethod
    def backward(ctx, *grad_outputs):
        (error,), (input, scale) = grad_outputs, ctx.saved_tensors
        library = library_for(error, input, scale)
        if library is None or torch.is_grad_enabled():
            return error * scale, (error * input).sum(dim=0), error.sum(dim=0)
        error, input, scale = error.contiguous(), input.contiguous(), scale.contiguous()
        by_input, by_scale, by_offset = torch.empty_like(error), torch.empty_like(scale), torch.empty_like(scale)
        sizes = (len(error), scale.numel(), error, input, scale)
        library.call("smoe_local_affine_gradient", *sizes, by_input, by_scale, by_offset, num_threads())
        return by_input, by_scale, by_offset


class LocalAffine(nn.Module):
    """Multiplies each channel by a learned number at each pixel, and adds another.

    Args:
        num_channels: C, the number of channels.
        spatial_shape: Grid of the input.
        device: Device of the parameters.
        dtype: Dtype of the parameters.
    """

    def __init__(
        self,
        num_channels: int,
        spatial_shape: tuple[int, ...],
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(num_channels=num_channels)
        self.scale = nn.Parameter(torch.empty(num_channels, *spatial_shape, device=device, dtype=dtype))
        self.offset = nn.Parameter(torch.empty(num_channels, *spatial_shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the scale to 1 and the offset to 0: the layer returns its input."""
        nn.init.ones_(self.scale)
        nn.init.zeros_(self.offset)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, C, *grid)` to the same shape."""
        if tuple(input.shape[1:]) != tuple(self.scale.shape):
            raise ValueError(
                f"the layer was made for {tuple(self.scale.shape)} channels and pixels, got {tuple(input.shape[1:])}"
            )
        return local_affine(input, self.scale.to(input.dtype), self.offset.to(input.dtype))

    def extra_repr(self) -> str:
        return f"{len(self.scale)}, spatial_shape={tuple(self.scale.shape[1:])}"


# Mean of an input, and its ratio to the standard deviation, from which on layers say that it should be normalised.
_LARGE_MEAN = 10.0


class InputMean(StatefulModule):
    """Mean input of a layer in its first training pass, and what its filters made of it then.

    What distinguishes the filters of a family works on the difference from the mean, so that candidates and their
    gradients are compared without it, however large it is. What they have in common learns as a convolution does. With
    filters that were copied or loaded, this holds for what changes in them: the output stays as it was.
    """

    mean: torch.Tensor
    response: torch.Tensor
    start_sum: torch.Tensor

    def __init__(
        self,
        num_inputs: int,
        num_families: int,
        num_experts: int,
        expert_channels: int,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__("is_set")
        self._num_families = num_families
        self._expert_channels = expert_channels
        self.register_buffer("mean", torch.zeros(num_inputs, device=device))
        self.register_buffer("response", torch.zeros(num_experts * expert_channels, device=device))
        # Sum of the filters as they were drawn: others are not new.
        self.register_buffer("start_sum", torch.full((), torch.nan, dtype=torch.float64, device=device))

    @torch.no_grad()
    def start(self, weight: torch.Tensor) -> None:
        """Records new filters."""
        self.restart()
        self.start_sum.copy_(weight.sum(dtype=torch.float64))

    @torch.no_grad()
    def set(self, source: torch.Tensor, weight: torch.Tensor) -> None:
        """Takes the mean of a source `(B, C, ...)`, of all processes, for filters `(X * F, C, *kernel)`."""
        if source.numel() == 0:
            return
        axes = (0, *range(2, source.ndim))
        mean = source.mean(dim=axes, dtype=torch.promote_types(source.dtype, torch.float32)).to(self.mean.dtype)
        if has_process_group():
            torch.distributed.all_reduce(mean)
            mean /= torch.distributed.get_world_size()
        mean = torch.where(mean.isfinite(), mean, 0.0)
        self.mean.copy_(mean)
        is_new = torch.isclose(weight.sum(dtype=torch.float64), self.start_sum.double(), rtol=1e-6)
        self.response.copy_(torch.where(is_new, 0.0, self.response_of(weight)))
        self.counters["is_set"] = 1
        if source.is_meta or torch.compiler.is_compiling():
            return
        deviation = source.float().var(dim=axes, correction=0).sqrt()
        # Layers inside of a network may see small constants.
        is_large = (deviation > 0.0) & (mean.abs() > _LARGE_MEAN * deviation.clamp(min=1.0))
        if bool(is_large.any()):
            channel = int(is_large.nonzero()[0])
            warnings.warn(
                f"channel {channel} of an SMoE layer's input has a mean of {float(mean[channel]):.4g} and deviates by "
                f"{float(deviation[channel]):.4g}: normalise inputs and targets, or learning is slow",
                stacklevel=8,
            )

    def response_of(self, weight: torch.Tensor) -> torch.Tensor:
        """Outputs of filters `(X * F,)` for the mean at every pixel, less the family's, in at least float32."""
        if self._expert_channels == 1:
            return mean_response(weight, self.mean, self._num_families)
        by_output = weight.unflatten(0, (-1, self._expert_channels)).unbind(1)
        return torch.stack([mean_response(each, self.mean, self._num_families) for each in by_output], dim=1).flatten()

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        # The difference of two responses would be lost in half precision.
        return super()._apply(lambda values: at_least_float32(fn, values), recurse)


class BankOptions(TypedDict, total=False):
    """Arguments that the layers of every geometry take; `SpatialMoE2d` describes them."""

    expert_channels: int
    gate: SpatialGate | None
    embedding: PixelEmbedding | None
    bias: bool | BiasOwner | None
    local_affine: bool | None
    weighted: bool
    order: Order | None
    rule: Rule | str | None
    damping: Damping | str | float | None
    device: torch.device | str | None
    dtype: torch.dtype | None


class LayerOptions(TypedDict, total=False):
    """Arguments of a layer that is called like a convolution; `SpatialMoE2d` describes them."""

    num_candidates: int
    gate: SpatialGate | None
    embedding: PixelEmbedding | None
    bias: bool
    rule: Rule | str | None
    local_affine: bool | None
    device: torch.device | str | None
    dtype: torch.dtype | None


def as_bank(
    out_channels: int,
    *,
    num_candidates: int = 2,
    gate: SpatialGate | None = None,
    embedding: PixelEmbedding | None = None,
    bias: bool = True,
    rule: Rule | str | None = None,
    local_affine: bool | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[int, int, BankOptions]:
    """X, E and the options of the bank of a layer with a family of candidates for each output channel."""
    check_positive(out_channels=out_channels, num_candidates=num_candidates)
    if local_affine is None:
        local_affine = isinstance(resolve_default_rule(rule, gate, None), StraightThrough)
    options: BankOptions = {"gate": gate, "embedding": embedding, "bias": bias, "rule": rule}
    options |= {"local_affine": local_affine, "device": device, "dtype": dtype}
    if gate is None and rule is not None:
        options["order"] = "families"
    return num_candidates * out_channels, out_channels, options


class FilterBank(RoutedLayer):
    """A bank of filters `(X * F, C, *kernel)`, of which a gate selects some at every pixel.

    A geometry derives from this class and defines `_as_convolution`, `_apply_filters` and `_output_grid`, and the two
    ways to make a layer: its constructor, which is that of the layer it replaces, and `from_experts`.
    """

    stride: tuple[int, ...] = (1,)

    def _init_bank(
        self,
        in_channels: int,
        num_experts: int,
        num_selected: int,
        kernel: tuple[int, ...],
        spatial_shape: tuple[int, ...] | None,
        *,
        expert_channels: int = 1,
        gate: SpatialGate | None = None,
        embedding: PixelEmbedding | None = None,
        bias: bool | BiasOwner | None = None,
        local_affine: bool | None = None,
        weighted: bool = False,
        order: Order | None = None,
        rule: Rule | str | None = None,
        damping: Damping | str | float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Initialises the layer, by the arguments of `SpatialMoE2d.from_experts`.

        `in_channels` are those that a filter meets; `kernel` has the sizes of the filters, none if they have one tap.
        """
        check_positive(in_channels=in_channels, num_experts=num_experts)
        if not isinstance(num_selected, Integral):
            raise ValueError(f"num_selected must be an integer, got {num_selected!r}")
        is_default_rule = rule is None and gate is None and order is None
        rule = resolve_default_rule(rule, gate, order)
        numbers = (num_experts, num_selected, spatial_shape, expert_channels, order, embedding)
        gate = resolve_gate(gate, rule, *numbers, device, dtype)
        RoutedLayer.__init__(self, gate, expert_channels, weighted, rule, damping, device=device)
        self.in_channels = in_channels
        self._call: LayerCall | None = None
        self.weight = nn.Parameter(
            torch.empty(num_experts * expert_channels, in_channels, *kernel, device=device, dtype=dtype)
        )
        if bias is None:
            bias = "expert" if gate.order == "families" or is_default_rule else False
        if bias not in (True, False, *BIAS_OWNERS):
            raise ValueError(f"bias must be True, False, {' or '.join(map(repr, BIAS_OWNERS))}, got {bias!r}")
        self._bias_owner: BiasOwner | None = "expert" if bias is True else bias or None
        num_biases = (num_selected if self._bias_owner == "slot" else num_experts) * expert_channels
        self.bias = nn.Parameter(torch.zeros(num_biases, device=device, dtype=dtype)) if self._bias_owner else None
        self._input_mean: InputMean | None = None
        if isinstance(rule, StraightThrough) and self._bias_owner == "expert":
            self._input_mean = InputMean(in_channels, num_selected, num_experts, expert_channels, device)
        self._affine: LocalAffine | None = None
        if local_affine:
            if gate.spatial_shape is None:
                raise ValueError(f"local_affine needs a gate that was made for a grid, got {type(gate).__name__}")
            self._affine = LocalAffine(self.out_channels, gate.spatial_shape, device=device, dtype=dtype)
        if self.weight.device != self._signal.num_nonfinite.device:
            self._signal.to(self.weight.device)
        self.reset_parameters()

    @property
    def out_channels(self) -> int:
        """E * F, the number of output channels."""
        return self.gate.num_selected * self._expert_channels

    def reset_parameters(self) -> None:
        """Draws new experts and zeroes the bias; the gate may be shared, so it is left alone.

        Experts start as the filters of `nn.Conv2d` do, and with the rules of the paper as those of its layer.

        The experts of a family start equal: the layer starts as a convolution, whichever expert serves a pixel, and the
        experts part because each learns from its own pixels. Those of a single family start at random.
        """
        slope = math.sqrt(5.0) if isinstance(self.rule, StraightThrough) else 0.0
        nn.init.kaiming_uniform_(self.weight, a=slope)
        if self.gate.order == "families" and self.gate.num_selected > 1:
            members = family_members(self.gate.num_experts, self.gate.num_selected, device=self.weight.device)
            experts = self.weight.data.unflatten(0, (-1, self._expert_channels))
            for place in range(1, members.shape[1]):
                experts.index_copy_(0, members[:, place], experts[members[:, 0]])
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        if self._affine is not None:
            self._affine.reset_parameters()
        if self._input_mean is not None:
            self._input_mean.start(self.weight)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        lists = (missing_keys, unexpected_keys, error_msgs)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, *lists)
        # As convolutions, linear layers, those with `weight_norm` and those of graphs name their filters.
        for key in ("weight", "parametrizations.weight.original1", "lin.weight", "lin_l.weight", "lin_rel.weight"):
            weight = state_dict.get(f"{prefix}{key}")
            is_of_graph = key.startswith("lin")
            num_outputs = 0 if weight is None else weight.numel() * len(self.weight) / max(1, self.weight.numel())
            if weight is not None and (is_of_graph or num_outputs == self.out_channels < len(self.weight)):
                way = "" if is_of_graph else ", or by smoe.nn.load_plain_state_dict(converted, state_dict)"
                error_msgs.append(f"{prefix}{key} is that of a plain layer: load it before smoe.convert{way}")

    def _elsewhere(self, input: torch.Tensor) -> torch.Tensor | None:
        """In evaluation, the output on another grid over the same area; None without an embedding from coordinates."""
        if self.training or not hasattr(getattr(self.gate, "embedding", None), "resize") or is_observed():
            return None
        warnings.warn(
            f"a layer that was made for the grid {self.gate.spatial_shape} computes its choices for another grid over "
            "the same area in each pass, and its parameters receive no gradient there; smoe.interpolate_grids makes a "
            "network that does not",
            stacklevel=4,
        )
        moved = importlib.import_module("smoe").interpolate_grids(self, example_input=input[:1].detach())
        return moved.requires_grad_(False)(input)

    def _finish(self, output: torch.Tensor, pixels: torch.Tensor | None) -> torch.Tensor:
        if self.bias is not None and self._bias_owner == "slot":
            output = output + self.bias.to(output.dtype).view(-1, *(1,) * (output.ndim - 2))
        if self._affine is None:
            return output
        scale, offset = self._affine.scale, self._affine.offset
        if pixels is not None:
            scale, offset = scale[:, pixels], offset[:, pixels]
        return local_affine(output, scale.to(output.dtype), offset.to(output.dtype))

    def _check_input(self, input: torch.Tensor) -> None:
        """As its base says; refuses an input of another dtype than the weights, unless autocast converts both."""
        super()._check_input(input)
        dtype = self._dtype
        if input.dtype != dtype and not torch.is_autocast_enabled(input.device.type):
            raise ValueError(
                f"the layer's weights are {dtype}, got an input of {input.dtype}: convert one of them, as by "
                f"input.to({dtype}) or layer.to({input.dtype})"
            )

    @property
    def _dtype(self) -> torch.dtype:
        """That of the filters, which are not computed for it if they are parametrised."""
        lists: Any = self._modules.get("parametrizations") or {}
        return (next(lists["weight"].parameters()) if "weight" in lists else self.weight).dtype

    def extra_repr(self) -> str:
        """The numbers that `repr` shows behind those of the geometry, and only those that are not the default."""
        if (
            self.gate.order == "families"
            and self._expert_channels == 1
            and self.gate.num_experts % self.gate.num_selected == 0
        ):
            parts = [f"candidates={self.gate.num_experts // self.gate.num_selected}"]
        else:
            parts = [f"num_experts={self.gate.num_experts}", f"num_selected={self.gate.num_selected}"]
            parts += [f"expert_channels={self._expert_channels}", f"order={self.gate.order!r}"]
        if self._bias_owner != "expert":
            parts.append(f"bias={self._bias_owner or False!r}")
        return ", ".join([*parts, super().extra_repr()])

    def _fused_output(self, input: torch.Tensor, routing: Routing) -> torch.Tensor | None:
        # Attributes of a module are found slowly, beside the kernel of a small layer.
        parameters, affine, mean, indices = self._parameters, self._affine, self._input_mean, routing.indices
        weight, bias = parameters.get("weight"), parameters.get("bias")
        is_simple = self._expert_channels == 1 and self._bias_owner != "slot"
        needs_scores = self._needs_scores if self.training else self._weighted
        if not is_simple or needs_scores or weight is None or routing.unranked is not None:
            return None
        scale, offset = (None, None) if affine is None else (affine.scale, affine.offset)
        if not is_plain(input, weight, bias, scale, offset) or (bias is None and self._bias_owner is not None):
            return None
        if len(indices) > 1 or not indices.is_contiguous() or input.numel() == 0 or not has_library():
            return None
        source, call = self._prepare(input), self._call
        if call is None or not call.serves(source):
            convolution = self._as_convolution(source, weight)
            if convolution is None:
                return None
            call = self._call = LayerCall(source, *convolution, indices)
        lesson = None
        if self.training:
            self._observe(source)
            if torch.is_grad_enabled():
                lesson = self._learner.lesson(Step(self, source, routing))
                if lesson is None:
                    return None
            self._last_routing = routing
        is_centred = mean is not None and mean.counters["is_set"]
        centre = (mean.mean, mean.response) if mean is not None and is_centred else (None, None)
        bank, kept = Bank(weight, bias, scale, offset, *centre), self.gate._buffers
        if kept.get("indices") is indices and not (self.training or is_centred or torch.is_grad_enabled()):
            is_whole = all(each is None or each.is_contiguous() for each in bank)
            if source is input and is_whole and not indices.is_inference():
                maps = {} if affine is None else affine._parameters
                names = ["weight", "bias", "scale", "offset", "indices", "gate", "_affine"]
                owners = (parameters, parameters, maps, maps, kept, self._modules, self._modules)
                call.bound = BoundCall(call, indices, bank, list(zip(owners, names, strict=True)))
        return call.output(source, indices, bank, lesson)

    def _apply_bank(self, source: torch.Tensor, indices: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Filters `(B, C, ...)` with the experts `(1 or B, E', P)` of each pixel; returns `(B, E' * F, *grid)`."""
        convolution = self._as_convolution(source, self.weight)
        assert convolution is not None
        filtered, filters, stride, padding_mode = convolution
        output = routed_conv(filtered, filters, indices, self._expert_channels, stride, padding_mode, bias)
        return output.flatten(2) if source.ndim == 3 else output

    @abstractmethod
    def _apply_filters(self, source: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
        """Filters `(B, C, ...)` with each of `(O, C, *kernel)` everywhere; returns `(B, O, *grid)`."""

    @abstractmethod
    def _as_convolution(
        self, source: torch.Tensor, filters: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, int, str] | None:
        """Arguments of `routed_conv` that filter the same way: source, filters, stride, padding mode; None if not."""

    def _select(self, source: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return self._select_compared(source, indices)[0]

    def _select_compared(
        self, source: torch.Tensor, indices: torch.Tensor
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        weight = self.weight.detach()
        if self.bias is None or self._bias_owner == "slot":
            return self._apply_bank(source, indices, None), (weight,)
        offsets = self._offsets()
        return self._apply_bank(source, indices, offsets), (weight, offsets.detach())

    def _trained_parameter(self) -> nn.Parameter | None:
        weight = self._parameters.get("weight")
        return weight if weight is not None and weight.requires_grad else super()._trained_parameter()

    def _observe(self, source: torch.Tensor) -> None:
        if self._input_mean is not None and not self._input_mean.counters["is_set"] and not has_transforms():
            self._input_mean.set(source, self.weight)

    def _offsets(self) -> torch.Tensor:
        """The biases of the experts `(X * F,)`, with what the mean input takes part in."""
        assert self.bias is not None
        mean, weight, bias = self._input_mean, self.weight, self.bias
        if mean is None or not mean.counters["is_set"]:
            return bias
        is_needed = self._expert_channels == 1 and not torch.is_grad_enabled() and not is_observed()
        library = library_for(weight, bias, mean.mean) if is_needed and is_plain(weight, bias) else None
        if library is not None:
            # As the kernels of a pass compute them, to the last digit.
            offsets, filters = torch.empty_like(bias), weight.contiguous()
            sizes = (len(weight), self.gate.num_selected, weight.shape[1], weight[0, 0].numel())
            library.call("smoe_offsets", *sizes, filters, bias, mean.response, mean.mean, offsets, num_threads())
            return offsets
        return bias + (mean.response - mean.response_of(weight)).to(bias.dtype)

    @torch.no_grad()
    def _fold_mean(self) -> None:
        """Lets the bias have the part of the mean input, for a layer that learns no more."""
        if self._input_mean is not None and self.bias is not None:
            self.bias.copy_(self._offsets())
            self._input_mean.restart()

    @torch.no_grad()
    def _family_gradient(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        source: torch.Tensor,
        error: torch.Tensor,
        temperature: float,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> tuple[dict[int, torch.Tensor], bool] | None:
        gate, convolution = self.gate, self._as_convolution(source, weight)
        if convolution is None or not isinstance(gate, FactorisedGate):
            return None
        *tensors, stride, padding_mode = convolution
        with torch.enable_grad():
            embedding = gate.embedding()
        found = learn_factorised(
            *(tensors[0], error, tensors[1], bias, gate.keys.detach(), embedding.detach().flatten(1)),
            num_selected=gate.num_selected,
            expert_channels=self._expert_channels,
            stride=stride,
            padding_mode=padding_mode,
            scale=gate.scale,
            temperature=temperature,
        )
        if found is None:
            return None
        by_keys, by_embedding, is_finite = found
        gradients, by_embedding = {id(gate.keys): by_keys}, by_embedding.view_as(embedding)
        if embedding.is_leaf:
            return {**gradients, id(embedding): by_embedding}, is_finite
        numbers = [values for values in gate._learned_numbers() if values is not gate.keys]
        found = torch.autograd.grad(embedding, numbers, by_embedding.to(embedding.dtype))
        return {**gradients, **{id(values): each for values, each in zip(numbers, found, strict=True)}}, is_finite

    @torch.no_grad()
    def _candidate_products(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        source: torch.Tensor,
        error: torch.Tensor,
        families: slice,
        experts: slice,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As its base says, by one pass over the input for each candidate of a family but the first.

        Only differences within a family matter, so the filters are those of a candidate less those of the first.
        """
        X, E, F = self.gate.num_experts, self.gate.num_selected, self._expert_channels
        members = family_members(X, E, device=weight.device)[families]
        filters_of = weight.unflatten(0, (-1, F))
        first = filters_of[members[:, 0]]
        flat_error = error.flatten(2).unflatten(1, (-1, F))[:, families].flatten(1, 2)
        dtype = torch.promote_types(error.dtype, torch.float32)
        products = flat_error.new_zeros(experts.stop - experts.start, flat_error.shape[2], dtype=dtype)
        for place in range(1, members.shape[1]):
            filters = (filters_of[members[:, place]] - first).flatten(0, 1).to(source.dtype)
            outputs = self._apply_filters(source, filters)
            found = slot_products(flat_error, outputs.flatten(2), F)
            if bias is not None:
                biases = bias.view(-1, F)
                offset = biases[members[:, place]] - biases[members[:, 0]]
                total = flat_error.to(found.dtype).sum(dim=0).unflatten(0, (-1, F))
                found += (total * offset[:, :, None]).sum(dim=1)
            # Families that are smaller repeat their first expert, whose product is 0, or its own once more.
            products.index_copy_(0, members[:, place] - experts.start, found)
        return products[None]
