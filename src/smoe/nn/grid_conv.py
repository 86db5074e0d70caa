"""A convolution that keeps its grid, with the borders of a map; gates and networks are made of it."""

from __future__ import annotations

import torch
from torch import nn

from smoe.nn.grid_checks import check_kernel_size, check_padding_mode, check_positive
from smoe.ops.grid_conv import grid_conv2d
from smoe.options import PaddingMode


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
