"""The SMoE layer in a volume: levels, rows and columns."""

from __future__ import annotations

from typing import Unpack

import torch

from smoe.nn.filter_bank import BankOptions, FilterBank
from smoe.nn.geometry.spatial_moe_1d import check_axes
from smoe.nn.grid_checks import check_positive
from smoe.ops.routed_conv3d import routed_conv3d, volume_conv3d, volume_grid

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
