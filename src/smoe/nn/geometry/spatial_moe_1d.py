"""The SMoE layer on a line: time series, profiles, rings."""

from __future__ import annotations

from typing import Unpack, cast

import torch

from smoe.nn.filter_bank import BankOptions, FilterBank
from smoe.nn.grid_checks import check_positive
from smoe.ops.grid_conv import grid_conv2d
from smoe.ops.padding import output_grid
from smoe.ops.routed_conv import routed_conv2d
from smoe.options import PaddingMode

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
