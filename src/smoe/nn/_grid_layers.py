"""SMoE layers on lines, planes and volumes."""

from __future__ import annotations

from typing import Unpack, cast

import torch
from torch import nn

from smoe.nn._filter_bank import BankOptions, FilterBank
from smoe.nn._gate import SpatialGate
from smoe.nn._routed_layer import (
    check_kernel_size,
    check_output_grid,
    check_padding_mode,
    check_positive,
    check_spatial_shape,
)
from smoe.ops._conv_kernels import output_grid
from smoe.ops._routed_conv import grid_conv2d, routed_conv2d
from smoe.ops._routed_conv3d import routed_conv3d, volume_conv3d, volume_grid
from smoe.options import BiasOwner, Order, PaddingMode
from smoe.rules import Damping, Rule


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


class SpatialMoE2d(FilterBank):
    """A bank of convolution filters, of which a gate selects some at every pixel.

    Output `(B, E * F, H', W')`; with stride 1 the grid is kept.

    Args:
        in_channels: C, the number of channels of the input.
        num_experts: X, the number of experts in the bank.
        num_selected: E, the number of experts selected at each pixel.
        kernel_size: Odd size of the filters, one number or rows and columns.
        expert_channels: F, the number of outputs per expert.
        stride: Stride of both axes; the gate has the output grid.
        padding_mode: `zeros`, `circular`, or `longitude` (the width wraps, zeros on the height).
        gate: Gate that selects the experts; without one, the default gate of the rule is made for `spatial_shape`.
        spatial_shape: Rows and columns of the output grid.
        bias: Add a learned number to the outputs: `"expert"` (or True), one for each output of each expert, so that the
            routing decides the offset of a pixel too; `"slot"`, one for each output channel, whichever expert serves
            it; False, none. It starts at 0. None for `"expert"` with the default rule or families, and else False.
        local_affine: Multiply each output channel by a learned number at each pixel, and add another. They start at 1
            and 0. Needs a gate that was made for a grid.
        weighted: Multiply the experts' outputs by their scores.
        order: Order of the output channels: `families`, `score`, or `index` for ascending expert numbers; None for that
            of the rule. A gate that is given has its own.
        rule: How the gate learns: a rule of `smoe.rules`, or its short form such as `"probe(window=4)"`. None for the
            default: probing for a single output channel, straight-through for families of experts, and routing
            classification for a gate that looks at its input or has another order.
        damping: Damping of the error of wrongly selected experts: a `smoe.rules.Damping` or a factor. If None, use that
            of the rule; only the paper's presets have one.
        device: Device of the weights.
        dtype: Dtype of the weights.

    Example:
        >>> layer = SpatialMoE2d(1, num_experts=3, num_selected=1, spatial_shape=(64, 64))
        >>> layer(torch.randn(8, 1, 64, 64)).shape
        torch.Size([8, 1, 64, 64])
    """

    def __init__(
        self,
        in_channels: int,
        num_experts: int,
        num_selected: int,
        kernel_size: int | tuple[int, int] = 3,
        *,
        expert_channels: int = 1,
        stride: int = 1,
        padding_mode: PaddingMode = "zeros",
        gate: SpatialGate | None = None,
        spatial_shape: tuple[int, int] | None = None,
        bias: bool | BiasOwner | None = None,
        local_affine: bool = False,
        weighted: bool = False,
        order: Order | None = None,
        rule: Rule | str | None = None,
        damping: Damping | str | float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_positive(stride=stride)
        sizes = check_kernel_size(kernel_size)
        check_padding_mode(padding_mode)
        super().__init__(
            in_channels,
            num_experts,
            num_selected,
            sizes,
            None if spatial_shape is None else check_spatial_shape(spatial_shape),
            expert_channels=expert_channels,
            gate=gate,
            bias=bias,
            local_affine=local_affine,
            weighted=weighted,
            order=order,
            rule=rule,
            damping=damping,
            device=device,
            dtype=dtype,
        )
        self.kernel_size = sizes
        self.stride = stride
        self.padding_mode: PaddingMode = padding_mode

    def check_input(self, input: torch.Tensor) -> None:
        """Refuses an input that is not floating-point, or whose output grid is not that of the gate."""
        super().check_input(input)
        made_for = self.gate.spatial_shape
        if made_for is not None and input.ndim == 4 and not self.gate.looks_at_input:
            check_output_grid(input, self.stride, made_for)

    def apply_bank(self, source: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Convolves each pixel with the filters of its experts."""
        return routed_conv2d(
            source,
            self.weight,
            indices,
            expert_channels=self.expert_channels,
            stride=self.stride,
            padding_mode=self.padding_mode,
            check_indices=False,
        )

    def apply_filters(self, source: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
        """Convolves with filters `(O, C, kh, kw)` everywhere."""
        return grid_conv2d(source, filters, stride=self.stride, padding_mode=self.padding_mode)

    def output_grid(self, input: torch.Tensor | None) -> tuple[int, int]:
        """Rows and columns of the output for an input."""
        if input is None:
            raise ValueError("give the input: the gate was made for no grid")
        return output_grid(input.shape[2], input.shape[3], self.stride)

    def extra_repr(self) -> str:
        """The numbers that `repr` shows."""
        return (
            f"{self.in_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding_mode={self.padding_mode!r}, {super().extra_repr()}"
        )


LINE_PADDINGS = ("zeros", "circular")


class SpatialMoE1d(FilterBank):
    """A bank of filters along a line, of which a gate selects some at every pixel.

    A line is an image of one row: the kernels of `SpatialMoE2d` serve it.

    Args:
        in_channels: C, the number of channels of the input.
        num_experts: X, the number of experts in the bank.
        num_selected: E, the number of experts selected at each pixel.
        kernel_size: Odd size of the filters.
        stride: Stride; the gate has the output's length.
        padding_mode: `zeros`, or `circular` for a ring.
        spatial_shape: Length of the output, as `(L,)` or a number.
        **options: Further arguments as for `SpatialMoE2d`.

    Example:
        >>> layer = SpatialMoE1d(1, num_experts=3, num_selected=1, spatial_shape=4096)
        >>> layer(torch.randn(8, 1, 4096)).shape
        torch.Size([8, 1, 4096])
    """

    def __init__(
        self,
        in_channels: int,
        num_experts: int,
        num_selected: int,
        kernel_size: int = 3,
        *,
        stride: int = 1,
        padding_mode: PaddingMode = "zeros",
        spatial_shape: tuple[int] | int | None = None,
        **options: Unpack[BankOptions],
    ) -> None:
        check_positive(stride=stride, kernel_size=kernel_size)
        if kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd, so that padding keeps the grid, got {kernel_size}")
        if padding_mode not in LINE_PADDINGS:
            raise ValueError(f"padding_mode must be one of {', '.join(LINE_PADDINGS)} on a line, got {padding_mode!r}")
        shape = (spatial_shape,) if isinstance(spatial_shape, int) else spatial_shape
        super().__init__(in_channels, num_experts, num_selected, (kernel_size,), shape, **options)
        check_axes(self, 1)
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding_mode: PaddingMode = padding_mode

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, C, L)` to `(B, E * F, L')`; channels `[s * F, (s + 1) * F)` are each pixel's s-th expert."""
        if input.ndim != 3 or input.shape[1] != self.in_channels:
            raise ValueError(f"input must be (B, {self.in_channels}, L), got shape {tuple(input.shape)}")
        return super().forward(input)

    def apply_bank(self, source: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Convolves each pixel with the filters of its experts."""
        output = routed_conv2d(
            source.unsqueeze(2),
            self.weight.unsqueeze(2),
            indices,
            expert_channels=self.expert_channels,
            stride=self.stride,
            padding_mode=self.padding_mode,
            check_indices=False,
        )
        return output.squeeze(2)

    def apply_filters(self, source: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
        """Convolves with filters `(O, C, k)` everywhere."""
        options = {"stride": self.stride, "padding_mode": self.padding_mode}
        return grid_conv2d(source.unsqueeze(2), filters.unsqueeze(2), **cast(dict, options)).squeeze(2)

    def output_grid(self, input: torch.Tensor | None) -> tuple[int, ...]:
        """Length of the output for an input."""
        if input is None:
            raise ValueError("give the input: the gate was made for no grid")
        return (output_grid(1, input.shape[2], self.stride)[1],)

    def extra_repr(self) -> str:
        """The numbers that `repr` shows."""
        return (
            f"{self.in_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding_mode={self.padding_mode!r}, {super().extra_repr()}"
        )


def check_axes(layer: FilterBank, num_axes: int) -> None:
    """Refuses a gate that was made for a grid with another number of axes."""
    grid = layer.gate.spatial_shape
    if grid is not None and len(grid) != num_axes:
        raise ValueError(f"{type(layer).__name__} needs a gate for {num_axes} axes, got one for the grid {grid}")


_PADDING_MODES = ("zeros", "circular")


class SpatialMoE3d(FilterBank):
    """A bank of filters in a volume, of which a gate selects some at every voxel.

    Args:
        in_channels: C, the number of channels of the input.
        num_experts: X, the number of experts in the bank.
        num_selected: E, the number of experts selected at each voxel.
        kernel_size: Odd sizes of the filters, one number or depth, rows and columns.
        stride: Stride of all axes; the gate has the output grid.
        padding_mode: `zeros`, or `circular`, which wraps all axes.
        spatial_shape: Depth, rows and columns of the output grid.
        **options: Further arguments as for `SpatialMoE2d`.

    Example:
        >>> layer = SpatialMoE3d(1, num_experts=3, num_selected=1, spatial_shape=(24, 64, 64))
        >>> layer(torch.randn(2, 1, 24, 64, 64)).shape
        torch.Size([2, 1, 24, 64, 64])
    """

    def __init__(
        self,
        in_channels: int,
        num_experts: int,
        num_selected: int,
        kernel_size: int | tuple[int, int, int] = 3,
        *,
        stride: int = 1,
        padding_mode: str = "zeros",
        spatial_shape: tuple[int, int, int] | None = None,
        **options: Unpack[BankOptions],
    ) -> None:
        sizes = (kernel_size,) * 3 if isinstance(kernel_size, int) else tuple(kernel_size)
        if len(sizes) != 3 or any(size < 1 or size % 2 == 0 for size in sizes):
            raise ValueError(f"kernel_size must be odd, one number or (depth, rows, columns), got {kernel_size}")
        if padding_mode not in _PADDING_MODES:
            raise ValueError(
                f"padding_mode must be one of {', '.join(_PADDING_MODES)} in a volume, got {padding_mode!r}"
            )
        check_positive(stride=stride)
        super().__init__(in_channels, num_experts, num_selected, sizes, spatial_shape, **options)
        check_axes(self, 3)
        self.kernel_size = sizes
        self.stride = stride
        self.padding_mode = padding_mode

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, C, D, H, W)` to `(B, E * F, D', H', W')`.

        Channels `[s * F, (s + 1) * F)` are each voxel's s-th expert.
        """
        if input.ndim != 5 or input.shape[1] != self.in_channels:
            raise ValueError(f"input must be (B, {self.in_channels}, D, H, W), got shape {tuple(input.shape)}")
        return super().forward(input)

    def apply_bank(self, source: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Convolves each voxel with the filters of its experts."""
        return routed_conv3d(
            source,
            self.weight,
            indices,
            expert_channels=self.expert_channels,
            stride=self.stride,
            padding_mode=self.padding_mode,
        )

    def apply_filters(self, source: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
        """Convolves with filters `(O, C, kd, kh, kw)` everywhere."""
        return volume_conv3d(source, filters, stride=self.stride, padding_mode=self.padding_mode)

    def output_grid(self, input: torch.Tensor | None) -> tuple[int, ...]:
        """Depth, rows and columns of the output for an input."""
        if input is None:
            raise ValueError("give the input: the gate was made for no grid")
        return volume_grid(input.shape[2:], self.kernel_size, self.stride, self.padding_mode)

    def extra_repr(self) -> str:
        """The numbers that `repr` shows."""
        return (
            f"{self.in_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding_mode={self.padding_mode!r}, {super().extra_repr()}"
        )
