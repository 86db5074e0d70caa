"""SMoE layers on lines, planes and volumes."""

from __future__ import annotations

from numbers import Integral
from typing import Any, ClassVar, Self, Unpack, cast

import torch
from torch import nn

from smoe.nn._filter_bank import BankOptions, FilterBank, as_bank
from smoe.nn._gate import SpatialGate
from smoe.nn._routed_layer import (
    check_kernel_size,
    check_output_grid,
    check_padding_mode,
    check_positive,
)
from smoe.ops._conv_kernels import convolve
from smoe.ops._routed_conv import grid_conv2d, routed_conv
from smoe.options import PADDING_MODES, PaddingMode
from smoe.rules import Rule, StraightThrough, resolve_rule


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
        """Convolves the input."""
        return grid_conv2d(input, self.weight, self.bias, stride=self.stride, padding_mode=self.padding_mode)

    def extra_repr(self) -> str:
        """Returns the arguments that `repr` shows."""
        out_channels, in_channels = self.weight.shape[:2]
        return (
            f"{in_channels}, {out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding_mode={self.padding_mode!r}, bias={self.bias is not None}"
        )


class GridMoE(FilterBank):
    """What `SpatialMoE1d`, `SpatialMoE2d` and `SpatialMoE3d` have in common: all but the kernels."""

    _axes: ClassVar[tuple[str, ...]]
    _padding_modes: ClassVar[tuple[PaddingMode, ...]] = ("zeros", "circular")
    # As attributes of a convolution, for networks that read them; no other values are supported.
    groups = 1
    transposed = False

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
        padding_mode: PaddingMode = "zeros",
        gate: SpatialGate | None = None,
        rule: Rule | str | None = None,
        local_affine: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        num_experts, num_selected, options = as_bank(
            out_channels,
            num_candidates=num_candidates,
            bias=bias,
            gate=gate,
            rule=rule,
            local_affine=local_affine,
            device=device,
            dtype=dtype,
        )
        geometry = (kernel_size, spatial_shape, stride, padding, dilation, groups, padding_mode)
        self._init_grid(in_channels, num_experts, num_selected, *geometry, **options)

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
        padding_mode: PaddingMode = "zeros",
        **options: Unpack[BankOptions],
    ) -> Self:
        """The layer in the paper's terms: a bank of X experts with F outputs each, of which E are selected.

        Args:
            in_channels: C, the number of channels of the input.
            num_experts: X, the number of experts in the bank.
            num_selected: E, the number of experts selected at each pixel; there are E * F output channels.
            kernel_size: As for the layer, like all arguments that are not described here.
            spatial_shape: Sizes of the output grid.
            stride: Stride of all axes.
            padding: None.
            dilation: 1.
            groups: 1.
            padding_mode: What is beyond the borders.
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
        geometry = (kernel_size, spatial_shape, stride, padding, dilation, groups, padding_mode)
        layer._init_grid(in_channels, num_experts, num_selected, *geometry, **options)
        return layer

    @classmethod
    def from_conv(
        cls,
        conv: nn.Conv1d | nn.Conv2d | nn.Conv3d | GridConv2d,
        *,
        spatial_shape: int | tuple[int, ...] | None = None,
        num_candidates: int = 2,
        gate: SpatialGate | None = None,
        rule: Rule | str | None = None,
        local_affine: bool = False,
    ) -> Self:
        """A layer that computes what the convolution computes: the candidates of a channel start as its filter.

        Device, dtype, mode and `requires_grad` are those of the convolution. See `smoe.convert` for a network.

        Args:
            conv: Convolution; it is not changed.
            spatial_shape: Sizes of its output grid.
            num_candidates: As for the layer, like all arguments below.
            gate: Gate with families of candidates.
            rule: How the gate learns; None for straight-through.
            local_affine: A learned scale and offset for each output channel and pixel.
        """
        num_axes = len(cls._axes)
        if not isinstance(conv, (nn.Conv1d, nn.Conv2d, nn.Conv3d, GridConv2d)) or conv.weight.ndim != num_axes + 2:
            raise TypeError(f"{cls.__name__}.from_conv takes an nn.Conv{num_axes}d, got a {type(conv).__name__}")
        if gate is None and rule is None:
            rule = StraightThrough()  # the default of a single channel, probing, needs candidates that differ
        orders = resolve_rule(rule).orders if gate is None and rule is not None else (gate and gate.order,)
        if len(conv.weight) > 1 and "families" not in orders:
            culprit = f"the rule {rule}" if gate is None else f"the {type(gate).__name__}"
            raise ValueError(
                f"from_conv keeps the channels of a convolution by families of candidates, but {culprit} has the "
                f"order {orders[0]!r}: give a rule that works with families, or a gate with order='families'"
            )
        rest: dict[str, Any] = {}
        if not isinstance(conv, GridConv2d):
            rest = {"padding": conv.padding, "dilation": conv.dilation, "groups": conv.groups}
        layer = cls(
            conv.weight.shape[1],
            conv.weight.shape[0],
            conv.kernel_size,
            spatial_shape=spatial_shape,
            num_candidates=num_candidates,
            stride=conv.stride,
            bias=conv.bias is not None,
            padding_mode=cast(PaddingMode, conv.padding_mode),
            gate=gate,
            rule=rule,
            local_affine=local_affine,
            device=conv.weight.device,
            dtype=conv.weight.dtype,
            **rest,
        )
        with torch.no_grad():
            layer.weight.copy_(conv.weight.repeat_interleave(num_candidates, dim=0))
            layer.weight.requires_grad_(conv.weight.requires_grad)
            if layer.bias is not None and conv.bias is not None:
                layer.bias.copy_(conv.bias.repeat_interleave(num_candidates))
                layer.bias.requires_grad_(conv.bias.requires_grad)
        return layer.train(conv.training)

    def _init_grid(
        self,
        in_channels: int,
        num_experts: int,
        num_selected: int,
        kernel_size: int | tuple[int, ...],
        spatial_shape: int | tuple[int, ...] | None,
        stride: int | tuple[int, ...],
        padding: int | tuple[int, ...] | str | None,
        dilation: int | tuple[int, ...],
        groups: int,
        padding_mode: PaddingMode,
        **options: Unpack[BankOptions],
    ) -> None:
        num_axes = len(self._axes)
        kernel = self._sizes("kernel_size", kernel_size)
        if any(size % 2 == 0 for size in kernel):
            raise ValueError(f"kernel_size must be odd, so that padding keeps the grid, got {kernel_size}")
        strides = self._sizes("stride", stride)
        if len(set(strides)) > 1:
            raise ValueError(f"stride must be the same for all axes, got {stride}: give one number")
        kept = tuple(size // 2 for size in kernel)
        given = 0 if padding == "valid" else padding
        if isinstance(given, Integral):
            given = (given,) * num_axes
        if given not in (None, "same", kept):
            raise ValueError(f"padding must be {kept} for the kernel {kernel}, got {padding!r}: leave it out")
        if self._sizes("dilation", dilation) != (1,) * num_axes:
            raise ValueError(f"dilation must be 1, got {dilation}: give a larger kernel_size")
        if groups != 1:
            raise ValueError(f"groups must be 1, got {groups}: give each group a layer of its own")
        if padding_mode not in self._padding_modes:
            raise ValueError(f"padding_mode must be one of {', '.join(self._padding_modes)}, got {padding_mode!r}")
        shape = None
        if spatial_shape is not None:
            is_number = isinstance(spatial_shape, Integral)
            if is_number and num_axes > 1:
                raise ValueError(
                    f"spatial_shape must be ({', '.join(self._axes)}) of the output grid, got {spatial_shape}"
                )
            shape = self._sizes("spatial_shape", spatial_shape)
        self._init_bank(in_channels, num_experts, num_selected, kernel, shape, **options)
        check_axes(self, num_axes)
        self.kernel_size = kernel
        self.stride = strides
        self.padding = kept
        self.dilation = (1,) * num_axes
        self.output_padding = (0,) * num_axes
        self.padding_mode: PaddingMode = padding_mode
        # Channels, grid and dtype of an input that was accepted.
        self._seen_input: tuple[torch.Size, torch.dtype] | None = None

    def _plan_routing(self) -> None:
        super()._plan_routing()
        self._seen_input = None

    def _sizes(self, name: str, value: object) -> tuple[int, ...]:
        """A number for each axis; one number is that of all axes."""
        sizes = (value,) * len(self._axes) if isinstance(value, Integral) else value
        if not isinstance(sizes, (tuple, list)) or len(sizes) != len(self._axes):
            raise ValueError(f"{name} must be one number or ({', '.join(self._axes)}), got {value!r}")
        if any(not isinstance(size, Integral) or size < 1 for size in sizes):
            raise ValueError(f"{name} must be integers of at least 1, got {value!r}")
        return tuple(int(size) for size in sizes)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, C, *grid)` to `(B, E * F, *grid)`, or both without B.

        Channels `[s * F, (s + 1) * F)` are each pixel's s-th expert.
        """
        # As a rule, an input is like that of the pass before.
        if type(input) is not torch.Tensor or (input.shape[1:], input.dtype) != self._seen_input:
            if isinstance(input, torch.Tensor) and input.ndim == len(self._axes) + 1:
                return self(input.unsqueeze(0)).squeeze(0)
            self._check_input(input)
            if not torch.compiler.is_compiling() and input.dtype == self.weight.dtype:
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
        if len(made_for) == 2:
            check_output_grid(input, self.stride[0], made_for)
        elif self._output_grid(input) != made_for:
            wanted = tuple(size * self.stride[0] for size in made_for)
            raise ValueError(
                f"the layer was made for an output grid of {made_for}, that of inputs of {wanted}, got an input of "
                f"{tuple(input.shape[2:])}: resize it, or make a layer for its grid"
            )

    def _output_grid(self, input: torch.Tensor | None) -> tuple[int, ...]:
        """Sizes of the output for an input."""
        if input is None:
            raise ValueError("give the input: the gate was made for no grid")
        return tuple((size - 1) // self.stride[0] + 1 for size in input.shape[2:])

    def extra_repr(self) -> str:
        """The numbers that `repr` shows."""
        mode = "" if self.padding_mode == "zeros" else f"padding_mode={self.padding_mode!r}, "
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, {mode}{super().extra_repr()}"
        )


class SpatialMoE2d(GridMoE):
    """A convolution whose filters a gate selects at every pixel: `nn.Conv2d` where the place decides.

    Each output channel has a few candidate filters, and the gate selects one of them at each pixel. The layer takes the
    arguments of `nn.Conv2d`, of which it supports some values only, and a few of its own.
    `SpatialMoE2d.from_experts` makes the layer of the paper, in the terms of the paper.

    Args:
        in_channels: Number of channels of the input.
        out_channels: Number of channels of the output.
        kernel_size: Odd size of the filters, one number or rows and columns.
        spatial_shape: Rows and columns of the output grid.
        num_candidates: Number of filters that each output channel selects from.
        stride: Stride of both axes; the gate has the output grid.
        padding: None, "same", or half the kernel: the grid is kept with stride 1.
        dilation: 1.
        groups: 1.
        bias: Add a learned number to the outputs of each candidate. It starts at 0.
        padding_mode: `zeros`, `circular`, or `longitude` (the width wraps, zeros on the height).
        gate: Gate that selects the candidates; without one, the default gate of the rule is made for `spatial_shape`.
        rule: How the gate learns: a rule of `smoe.rules`, or its short form such as `"probe(window=4)"`. None for the
            default: probing for a single output channel, straight-through for several, and routing classification for a
            gate that looks at its input or has another order.
        local_affine: Multiply each output channel by a learned number at each pixel, and add another. They start at 1
            and 0. Needs a gate that was made for a grid.
        device: Device of the weights.
        dtype: Dtype of the weights.

    Example:
        >>> layer = SpatialMoE2d(16, 32, kernel_size=3, spatial_shape=(64, 64))
        >>> layer(torch.randn(8, 16, 64, 64)).shape
        torch.Size([8, 32, 64, 64])
    """

    _axes = ("rows", "columns")
    _padding_modes = PADDING_MODES

    def _apply_bank(self, source: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Convolves each pixel with the filters of its experts."""
        return routed_conv(source, self.weight, indices, self._expert_channels, self.stride[0], self.padding_mode)

    def _apply_filters(self, source: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
        """Convolves with filters `(O, C, kh, kw)` everywhere."""
        return grid_conv2d(source, filters, stride=self.stride[0], padding_mode=self.padding_mode)


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

    def _apply_bank(self, source: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Convolves each pixel with the filters of its experts."""
        options = (self._expert_channels, self.stride[0], self.padding_mode)
        return routed_conv(source.unsqueeze(2), self.weight.unsqueeze(2), indices, *options).squeeze(2)

    def _apply_filters(self, source: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
        """Convolves with filters `(O, C, k)` everywhere."""
        stride, mode = self.stride[0], self.padding_mode
        return grid_conv2d(source.unsqueeze(2), filters.unsqueeze(2), stride=stride, padding_mode=mode).squeeze(2)


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

    def _apply_bank(self, source: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Convolves each voxel with the filters of its experts."""
        return routed_conv(source, self.weight, indices, self._expert_channels, self.stride[0], self.padding_mode)

    def _apply_filters(self, source: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
        """Convolves with filters `(O, C, kd, kh, kw)` everywhere."""
        return convolve(source, filters, stride=self.stride[0], padding_mode=self.padding_mode)


def check_axes(layer: FilterBank, num_axes: int) -> None:
    """Refuses a gate that was made for a grid with another number of axes."""
    grid = layer.gate.spatial_shape
    if grid is not None and len(grid) != num_axes:
        raise ValueError(f"{type(layer).__name__} needs a gate for {num_axes} axes, got one for the grid {grid}")
