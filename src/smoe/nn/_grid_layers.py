"""SMoE layers on lines, planes and volumes."""

from __future__ import annotations

from numbers import Integral
from typing import Any, ClassVar, Literal, Self, Unpack, cast

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from smoe.nn._filter_bank import BankOptions, FilterBank, LayerOptions, as_bank
from smoe.nn._gate import SpatialGate
from smoe.nn._gates import PixelEmbedding
from smoe.nn._routed_layer import (
    as_leaf,
    check_kernel_size,
    check_output_grid,
    check_padding_mode,
    check_positive,
)
from smoe.ops._any_conv import ConvOptions, any_conv, conv_sizes, routed_any_conv
from smoe.ops._conv_kernels import convolve
from smoe.ops._families import family_sizes
from smoe.ops._routed_conv import grid_conv2d
from smoe.options import PADDING_MODES, PaddingMode
from smoe.rules import Rule

ConvPadding = Literal["zeros", "circular", "longitude", "reflect", "replicate"]


class GridConv2d(nn.Module):
    """`(B, C, H, W)` to `(B, out_channels, ceil(H / stride), ceil(W / stride))`.

    Unlike `torch.nn.Conv2d`, it can wrap one axis only, which data on a globe need.

    Args:
        in_channels: C.
        out_channels: Number of filters.
        kernel_size: Size of the kernel, odd: one number, or rows and columns.
        stride: Stride of both axes.
        padding_mode: `zeros`, `circular` or `longitude`.
        bias: Add a learned number to each output channel. It starts at 0.
        device: Device of the weights.
        dtype: Data type of the weights.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int] = 3,
        *,
        stride: int = 1,
        padding_mode: PaddingMode = "zeros",
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(in_channels=in_channels, out_channels=out_channels, stride=stride)
        self.kernel_size = check_kernel_size(kernel_size)
        self.stride = stride
        self.padding_mode: PaddingMode = check_padding_mode(padding_mode)
        self.weight = nn.Parameter(
            torch.empty(out_channels, in_channels, *self.kernel_size, device=device, dtype=dtype)
        )
        nn.init.kaiming_uniform_(self.weight, nonlinearity="relu")
        self.bias = nn.Parameter(torch.zeros(out_channels, device=device, dtype=dtype)) if bias else None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return grid_conv2d(input, self.weight, self.bias, stride=self.stride, padding_mode=self.padding_mode)

    def extra_repr(self) -> str:
        out_channels, in_channels = self.weight.shape[:2]
        return (
            f"{in_channels}, {out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding_mode={self.padding_mode!r}, bias={self.bias is not None}"
        )


def conv_filters(conv: _ConvNd | GridConv2d) -> torch.Tensor:
    """Filters `(O, C / groups, *kernel)` of a convolution, also of a transposed one."""
    if not isinstance(conv, _ConvTransposeNd):
        return conv.weight
    return conv.weight.unflatten(0, (conv.groups, -1)).transpose(1, 2).flatten(0, 1)


def conv_channels(conv: _ConvNd | GridConv2d) -> int:
    return conv.in_channels if isinstance(conv, _ConvNd) else conv.weight.shape[1]


def conv_arguments(conv: _ConvNd | GridConv2d) -> dict[str, Any]:
    """Arguments of `from_experts` by which a layer filters as a convolution does."""
    if isinstance(conv, GridConv2d):
        return {"stride": conv.stride, "padding_mode": conv.padding_mode}
    arguments = {name: getattr(conv, name) for name in ("stride", "padding", "dilation", "groups", "padding_mode")}
    if isinstance(conv, _ConvTransposeNd):
        arguments |= {"transposed": True, "output_padding": conv.output_padding}
    return arguments


@torch.no_grad()
def fill_families(layer: FilterBank, filters: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Gives the candidates of each output channel its filter, of filters `(O, ...)`, and its bias."""
    sizes = torch.tensor(family_sizes(layer.gate.num_experts, layer.gate.num_selected), device="cpu")
    family = torch.arange(len(sizes), device="cpu").repeat_interleave(sizes).to(filters.device)
    layer.weight.copy_(filters[family])
    if layer.bias is not None and bias is not None:
        layer.bias.copy_(bias[family] if layer._bias_owner == "expert" else bias)


class GridMoE(FilterBank):
    """What `SpatialMoE1d`, `SpatialMoE2d` and `SpatialMoE3d` have in common: all but the kernels."""

    _axes: ClassVar[tuple[str, ...]]
    _padding_modes: ClassVar[tuple[PaddingMode, ...]] = ("zeros", "circular")
    # What the kernels do not do; None if they do all.
    _conv: ConvOptions | None = None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...] = 3,
        *,
        spatial_shape: int | tuple[int, ...] | None = None,
        num_candidates: int = 2,
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | str | None = None,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: ConvPadding = "zeros",
        gate: SpatialGate | None = None,
        embedding: PixelEmbedding | None = None,
        rule: Rule | str | None = None,
        local_affine: bool | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        num_experts, num_selected, options = as_bank(
            out_channels,
            num_candidates=num_candidates,
            bias=bias,
            gate=gate,
            embedding=embedding,
            rule=rule,
            local_affine=local_affine,
            device=device,
            dtype=dtype,
        )
        geometry = (kernel_size, stride, padding, dilation, groups, padding_mode)
        self._init_grid(in_channels, num_experts, num_selected, spatial_shape, geometry, **options)

    @classmethod
    def from_experts(
        cls,
        in_channels: int,
        num_experts: int,
        num_selected: int,
        kernel_size: int | tuple[int, ...] = 3,
        *,
        spatial_shape: int | tuple[int, ...] | None = None,
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | str | None = None,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        padding_mode: ConvPadding = "zeros",
        transposed: bool = False,
        output_padding: int | tuple[int, ...] = 0,
        **options: Unpack[BankOptions],
    ) -> Self:
        """The layer in the paper's terms: a bank of X experts with F outputs each, of which E are selected.

        Args:
            in_channels: C, the number of channels of the input.
            num_experts: X, the number of experts in the bank.
            num_selected: E, the number of experts selected at each pixel; there are E * F output channels.
            kernel_size: As for the layer, like all arguments that are not described here.
            spatial_shape: Sizes of the output grid.
            stride: Stride.
            padding: Padding.
            dilation: Dilation.
            groups: Number of groups of channels; the gate then has families, as many in each group.
            padding_mode: What is beyond the borders.
            transposed: The transpose of a convolution, as `nn.ConvTranspose2d`: the gate still has the output grid.
            output_padding: Pixels that a transposed one adds after each axis.
            **options: `expert_channels`: F, the number of outputs per expert (1).
                `weighted`: Multiply the experts' outputs by their scores (False).
                `order`: Order of the output channels: `families`, `score`, or `index` for ascending expert numbers;
                None for that of the rule. A gate that is given has its own.
                `damping`: Damping of the error of wrongly selected experts: a `smoe.rules.Damping` or a factor; None
                for that of the rule, and only the paper's presets have one.
                `bias`: Owner of the learned offsets: `"expert"` (or True), one for each output of each expert;
                `"slot"`, one for each output channel, whichever expert serves it; False, none. None for `"expert"` with
                the default rule or families, and else False.
                `gate`, `rule`, `local_affine`, `device`, `dtype`: As for the layer.
        """
        layer = cls.__new__(cls)
        geometry = (kernel_size, stride, padding, dilation, groups, padding_mode, transposed, output_padding)
        layer._init_grid(in_channels, num_experts, num_selected, spatial_shape, geometry, **options)
        return layer

    @classmethod
    def from_conv(
        cls,
        conv: _ConvNd | GridConv2d,
        *,
        spatial_shape: int | tuple[int, ...] | None = None,
        **options: Unpack[LayerOptions],
    ) -> Self:
        """A layer that computes what the convolution computes: the candidates of a channel start as its filter.

        Device, dtype, mode and `requires_grad` are those of the convolution. See `smoe.convert` for a network.

        Args:
            conv: Convolution, transposed or not; it is not changed.
            spatial_shape: Sizes of its output grid.
            **options: `num_candidates`, `gate`, `embedding`, `rule` and `local_affine` as for the layer.
        """
        num_axes = len(cls._axes)
        if not isinstance(conv, (_ConvNd, GridConv2d)) or conv.weight.ndim != num_axes + 2:
            raise TypeError(f"{cls.__name__}.from_conv takes an nn.Conv{num_axes}d, got a {type(conv).__name__}")
        filters, gate = conv_filters(conv), options.get("gate")
        if len(filters) > 1 and gate is not None and gate.order != "families":
            raise ValueError(
                "from_conv keeps the channels of a convolution by families of candidates, but the "
                f"{type(gate).__name__} has the order {gate.order!r}: give a gate with order='families'"
            )
        of_conv: LayerOptions = {"bias": conv.bias is not None, "device": filters.device, "dtype": filters.dtype}
        num_experts, num_selected, bank = as_bank(len(filters), **{**options, **of_conv})
        layer = cls.from_experts(
            *(conv_channels(conv), num_experts, num_selected, conv.kernel_size),
            spatial_shape=spatial_shape,
            **conv_arguments(conv),
            **bank,
        )
        fill_families(layer, filters, conv.bias)
        layer.weight.requires_grad_(conv.weight.requires_grad)
        if layer.bias is not None and conv.bias is not None:
            layer.bias.requires_grad_(conv.bias.requires_grad)
        return layer.train(conv.training)

    def _init_grid(
        self,
        in_channels: int,
        num_experts: int,
        num_selected: int,
        spatial_shape: int | tuple[int, ...] | None,
        geometry: tuple[Any, ...],
        **options: Unpack[BankOptions],
    ) -> None:
        num_axes = len(self._axes)
        kernel, conv, is_served = self._conv_options(*geometry)
        groups, transposed = conv.groups, conv.output_padding is not None
        check_positive(in_channels=in_channels)
        if in_channels % groups or num_selected % groups:
            channels = f"{in_channels} inputs and {num_selected} outputs"
            raise ValueError(f"groups must divide the channels, got {groups} groups of {channels}")
        self._conv = None if is_served else conv
        shape = None
        if spatial_shape is not None:
            is_number = isinstance(spatial_shape, Integral)
            if is_number and num_axes > 1:
                raise ValueError(
                    f"spatial_shape must be ({', '.join(self._axes)}) of the output grid, got {spatial_shape}"
                )
            shape = self._sizes("spatial_shape", spatial_shape)
        self._init_bank(in_channels // groups, num_experts, num_selected, kernel, shape, **options)
        check_axes(self, num_axes)
        if groups > 1 or transposed:  # a filter does not meet the mean of all channels with all its taps
            self._input_mean = None
        if groups > 1 and (self.gate.order != "families" or num_experts % num_selected):
            raise ValueError(
                f"groups need families of equal size, got {num_experts} experts for {num_selected} outputs in the "
                f"order {self.gate.order!r}"
            )
        self.in_channels = in_channels
        self.kernel_size = kernel
        self.stride = conv.stride
        is_even = all(before == after for before, after in conv.padding)
        self.padding = tuple(before for before, _ in conv.padding) if is_even else "same"
        self.dilation = conv.dilation
        self.groups = groups
        self.transposed = transposed
        self.output_padding = conv.output_padding or (0,) * num_axes
        self.padding_mode = conv.padding_mode
        # Channels, grid and dtype of an input that was accepted.
        self._seen_input: tuple[torch.Size, torch.dtype] | None = None

    def _forget_input(self) -> None:
        self._seen_input = self._call = None

    @classmethod
    def _conv_options(
        cls,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | str | None = None,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        padding_mode: str = "zeros",
        transposed: bool = False,
        output_padding: int | tuple[int, ...] = 0,
    ) -> tuple[tuple[int, ...], ConvOptions, bool]:
        """Sizes of the filters, what a convolution does beside them, and whether the C++ kernels serve it."""
        kernel, steps = cls._sizes("kernel_size", kernel_size), cls._sizes("dilation", dilation)
        strides, extra = cls._sizes("stride", stride), cls._sizes("output_padding", output_padding, least=0)
        check_positive(groups=groups)
        modes = (*cls._padding_modes, "reflect", "replicate")
        if padding_mode not in modes:
            raise ValueError(f"padding_mode must be one of {', '.join(modes)}, got {padding_mode!r}")
        if padding is None or padding == "same":
            reach = [step * (size - 1) for step, size in zip(steps, kernel, strict=True)]
            sides = tuple((size // 2, size - size // 2) for size in reach)
        elif isinstance(padding, str) and padding != "valid":
            raise ValueError(f"padding must be 'same', 'valid' or numbers, got {padding!r}")
        else:
            sides = tuple((size, size) for size in cls._sizes("padding", 0 if padding == "valid" else padding, least=0))
        conv = ConvOptions(strides, sides, steps, groups, padding_mode, extra if transposed else None)
        keeps_grid = all(size % 2 == 1 and side == (size // 2,) * 2 for size, side in zip(kernel, sides, strict=True))
        is_plain = keeps_grid and set(steps) == {1} and len(set(strides)) == 1 and groups == 1 and not transposed
        return kernel, conv, is_plain and padding_mode in cls._padding_modes

    @classmethod
    def _sizes(cls, name: str, value: object, least: int = 1) -> tuple[int, ...]:
        """A number for each axis; one number is that of all axes."""
        sizes = (value,) * len(cls._axes) if isinstance(value, Integral) else value
        if not isinstance(sizes, (tuple, list)) or len(sizes) != len(cls._axes):
            raise ValueError(f"{name} must be one number or ({', '.join(cls._axes)}), got {value!r}")
        if any(not isinstance(size, Integral) or size < least for size in sizes):
            raise ValueError(f"{name} must be integers of at least {least}, got {value!r}")
        return tuple(int(size) for size in sizes)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, C, *grid)` to `(B, E * F, *grid)`, or both without B.

        Channels `[s * F, (s + 1) * F)` are each pixel's s-th expert.
        """
        call = self._call
        if call is not None and call.bound is not None and not self.training:
            output = call.bound(input)
            if output is not None:
                return output
        # As a rule, an input is like that of the pass before.
        if type(input) is not torch.Tensor or (input.shape[1:], input.dtype) != self._seen_input:
            if not isinstance(input, torch.Tensor) and hasattr(input, "tracer"):
                return as_leaf(self, input)
            if isinstance(input, torch.Tensor) and input.ndim == len(self._axes) + 1:
                return self(input.unsqueeze(0)).squeeze(0)
            is_batch = isinstance(input, torch.Tensor) and input.ndim == len(self._axes) + 2
            if is_batch and self.gate.spatial_shape not in (None, self._output_grid(input)):
                output = self._elsewhere(input)
                if output is not None:
                    return output
            self._check_input(input)
            if not torch.compiler.is_compiling() and input.dtype == self._dtype:
                self._seen_input = (input.shape[1:], input.dtype)
        return self._run(input)

    def _check_input(self, input: torch.Tensor) -> None:
        """As its base says; refuses other channels, and an output grid that is not that of the gate."""
        super()._check_input(input)
        if input.ndim != len(self._axes) + 2 or input.shape[1] != self.in_channels:
            expected = ", ".join(["B", str(self.in_channels), *self._axes])
            raise ValueError(
                f"input must be ({expected}), because in_channels is {self.in_channels}, got shape {tuple(input.shape)}"
            )
        made_for = self.gate.spatial_shape
        if made_for is None or self.gate.looks_at_input:
            return
        if len(made_for) == 2 and self._conv is None:
            check_output_grid(input, self.stride[0], made_for)
        elif self._output_grid(input) != made_for:
            raise ValueError(
                f"the layer was made for an output grid of {made_for}, got an input of {tuple(input.shape[2:])}, whose "
                f"output grid is {self._output_grid(input)}: resize it, or adapt the network by smoe.interpolate_grids"
            )

    def _output_grid(self, input: torch.Tensor | None) -> tuple[int, ...]:
        if input is None:
            raise ValueError("give the input: the gate was made for no grid")
        if self._conv is not None:
            return conv_sizes(input.shape[2:], self.kernel_size, self._conv)
        return tuple((size - 1) // self.stride[0] + 1 for size in input.shape[2:])

    def _apply_bank(self, source: torch.Tensor, indices: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self._conv is not None:
            return routed_any_conv(source, self.weight, indices, self._expert_channels, self._conv, bias)
        return super()._apply_bank(source, indices, bias)

    def _apply_filters(self, source: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
        if self._conv is not None:
            return any_conv(source, filters, self._conv)
        stride, mode = self.stride[0], cast(PaddingMode, self.padding_mode)
        if source.ndim == 3:
            return grid_conv2d(source.unsqueeze(2), filters.unsqueeze(2), stride=stride, padding_mode=mode).squeeze(2)
        return (grid_conv2d if source.ndim == 4 else convolve)(source, filters, stride=stride, padding_mode=mode)

    def _as_convolution(
        self, source: torch.Tensor, filters: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, int, str] | None:
        """A line is an image of one row."""
        if self._conv is not None:
            return None
        if source.ndim == 3:
            source, filters = source.unsqueeze(2), filters.unsqueeze(2)
        return source, filters, self.stride[0], self.padding_mode

    def _candidate_products(
        self,
        source: torch.Tensor,
        error: torch.Tensor,
        families: slice,
        experts: slice,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As its base says; the families of all groups are compared together."""
        if self.groups == 1:
            return super()._candidate_products(source, error, families, experts, weight, bias)
        everything = (slice(0, self.gate.num_selected), slice(0, self.gate.num_experts))
        return super()._candidate_products(source, error, *everything, weight, bias)[:, experts]

    def extra_repr(self) -> str:
        parts = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"]
        parts.append(f"padding={self.padding!r}")
        usual = {"dilation": (1,) * len(self._axes), "groups": 1, "padding_mode": "zeros", "transposed": False}
        parts += [f"{name}={getattr(self, name)!r}" for name, value in usual.items() if getattr(self, name) != value]
        return ", ".join([*parts, super().extra_repr()])


class SpatialMoE2d(GridMoE):
    """A convolution whose filters a gate selects at every pixel: `nn.Conv2d` where the place decides.

    Each output channel has a few candidate filters, and the gate selects one of them at each pixel. They start equal,
    so that the layer starts as a convolution; those of a single output channel start at random. The layer takes the
    arguments of `nn.Conv2d`, and a few of its own. The C++ kernels compute odd kernels with one stride, no dilation,
    one group and padding that keeps the grid; all else is computed by PyTorch, with every candidate at every pixel.
    `SpatialMoE2d.from_experts` makes the layer of the paper, in the terms of the paper.

    Args:
        in_channels: Number of channels of the input.
        out_channels: Number of channels of the output.
        kernel_size: Size of the filters, one number or rows and columns.
        spatial_shape: Rows and columns of the output grid.
        num_candidates: Number of filters that each output channel selects from.
        stride: Stride, one number or that of rows and columns; the gate has the output grid.
        padding: As for `nn.Conv2d`; None for "same", which keeps the grid at stride 1, with any stride.
        dilation: Distance of the taps, one number or that of rows and columns.
        groups: Number of groups of channels, which divides the channels of input and output.
        bias: Add a learned number to the outputs of each candidate. It starts at 0. With one group, what changes in the
            filters then works on the input less its mean in the first training pass.
        padding_mode: `zeros`, `circular`, `longitude` (the width wraps, zeros on the height), `reflect` or `replicate`.
        gate: Gate that selects the candidates; without one, the default gate of the rule is made for `spatial_shape`.
        embedding: Embedding of the pixels that the default gate is made of; `other.gate.embedding` shares that of
            another layer on the same grid, which is better than one each.
        rule: How the gate learns: a rule of `smoe.rules`, or its short form such as `"rc"`. None for the default:
            straight-through, and routing classification for a gate that looks at its input or has another order.
        local_affine: Multiply each output channel by a learned number at each pixel, and add another. They start at 1
            and 0. Under the straight-through rule, where None means True, they learn at a rate of 0.01 at least, where
            the optimiser is of Adam's kind. Needs a gate that was made for a grid.
        device: Device of the weights.
        dtype: Dtype of the weights.

    Example:
        >>> layer = SpatialMoE2d(16, 32, kernel_size=3, spatial_shape=(64, 64))
        >>> layer(torch.randn(8, 16, 64, 64)).shape
        torch.Size([8, 32, 64, 64])
    """

    _axes = ("rows", "columns")
    _padding_modes = PADDING_MODES


class SpatialMoE1d(GridMoE):
    """`SpatialMoE2d` along a line: `nn.Conv1d` where the place decides.

    A line is an image of one row: the kernels of `SpatialMoE2d` serve it. The arguments are those of `SpatialMoE2d`;
    `spatial_shape` is the length of the output, and `padding_mode` is `zeros`, or `circular` for a ring.

    Example:
        >>> layer = SpatialMoE1d(1, 4, spatial_shape=4096)
        >>> layer(torch.randn(8, 1, 4096)).shape
        torch.Size([8, 4, 4096])
    """

    _axes = ("length",)


class SpatialMoE3d(GridMoE):
    """`SpatialMoE2d` in a volume: `nn.Conv3d` where the place decides.

    The arguments are those of `SpatialMoE2d`; `spatial_shape` is the depth, rows and columns of the output, and
    `padding_mode` is `zeros`, or `circular`, which wraps all axes.

    Example:
        >>> layer = SpatialMoE3d(1, 4, spatial_shape=(24, 64, 64))
        >>> layer(torch.randn(2, 1, 24, 64, 64)).shape
        torch.Size([2, 4, 24, 64, 64])
    """

    _axes = ("depth", "rows", "columns")


class TokenMoE(SpatialMoE1d):
    """`nn.Linear` where the position decides: at the tokens of a transformer, or the last axis of any field.

    `(B, *positions, C)` to `(B, *positions, out_channels)`; the positions are the same in every pass. Rows `(N, C)` are
    the nodes of a graph, or of several with as many nodes, one after the other. The arguments are those of
    `SpatialMoE1d` with a kernel of 1; `spatial_shape` is the number of positions.

    Example:
        >>> layer = TokenMoE(64, 256, 1, spatial_shape=197)
        >>> layer(torch.randn(8, 197, 64)).shape
        torch.Size([8, 197, 256])
    """

    positions: tuple[int, ...] = ()
    """Rows and columns, if `smoe.convert` saw more than one axis of positions; for `smoe.interpolate_grids`."""

    @property
    def in_features(self) -> int:
        return self.in_channels

    @property
    def out_features(self) -> int:
        return self.out_channels

    def _elsewhere(self, input: torch.Tensor) -> None:
        """Positions of another number have no places."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Applies, at each position, the linear maps of its experts."""
        if not isinstance(input, torch.Tensor):
            if hasattr(input, "tracer"):
                return as_leaf(self, input)
            self._check_input(input)
        if input.ndim == 2:
            (num_nodes,) = self.gate.spatial_shape or (len(input),)
            if len(input) % num_nodes == 0:
                return self(input.unflatten(0, (-1, num_nodes))).flatten(0, 1)
        if input.ndim < 3 or input.shape[-1] != self.in_channels:
            channels = self.in_channels
            raise ValueError(
                f"input must be (B, *positions, {channels}), or (N, {channels}) of one or several graphs with the "
                f"gate's number of nodes, got shape {tuple(input.shape)}"
            )
        positions = input.shape[1:-1]
        output = super().forward(input.flatten(1, -2).transpose(1, 2)).transpose(1, 2)
        return output.contiguous().unflatten(1, positions)  # as nn.Linear's, of which a network may take a view


def check_axes(layer: FilterBank, num_axes: int) -> None:
    grid = layer.gate.spatial_shape
    if grid is not None and len(grid) != num_axes:
        raise ValueError(f"{type(layer).__name__} needs a gate for {num_axes} axes, got one for the grid {grid}")
