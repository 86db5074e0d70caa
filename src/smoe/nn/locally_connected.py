"""A locally connected layer: a convolution in which each pixel has its own filters."""

from __future__ import annotations

import math

import torch
from torch import nn

from smoe.nn.grid_checks import (
    check_kernel_size,
    check_output_grid,
    check_padding_mode,
    check_positive,
    check_spatial_shape,
)
from smoe.ops.local_conv import local_conv2d
from smoe.options import PaddingMode


class LocallyConnected2d(nn.Module):
    """`(B, C, H, W)` to `(B, out_channels, H', W')`, without bias; the grid is kept at stride 1.

    Args:
        in_channels: C.
        out_channels: Number of filters at each pixel.
        kernel_size: Size of the kernel, odd: one number, or rows and columns.
        spatial_shape: Rows and columns of the output grid.
        stride: Stride of both axes.
        padding_mode: `zeros`, `circular` or `longitude`.
        device: Device of the weights.
        dtype: Data type of the weights.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int] = 3,
        *,
        spatial_shape: tuple[int, int],
        stride: int = 1,
        padding_mode: PaddingMode = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(in_channels=in_channels, out_channels=out_channels, stride=stride)
        self.spatial_shape = check_spatial_shape(spatial_shape)
        self.kernel_size = check_kernel_size(kernel_size)
        self.stride = stride
        self.padding_mode: PaddingMode = check_padding_mode(padding_mode)
        fan_in = in_channels * self.kernel_size[0] * self.kernel_size[1]
        shape = (out_channels, *self.spatial_shape, in_channels, *self.kernel_size)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        # The fan-in is C kh kw, the number of values that enter an output, whatever the size of the grid.
        bound = math.sqrt(6.0 / fan_in)
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Applies each pixel's own filters."""
        check_output_grid(input, self.stride, self.spatial_shape)
        return local_conv2d(input, self.weight, stride=self.stride, padding_mode=self.padding_mode)
