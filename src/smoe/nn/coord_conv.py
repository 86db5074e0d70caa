"""CoordConv: a convolution whose input has the coordinates of each pixel appended (Liu et al., 2018)."""

from __future__ import annotations

import torch
from torch import nn

from smoe.nn.grid_conv import GridConv2d
from smoe.options import PaddingMode


def append_coordinates(input: torch.Tensor, with_radius: bool = False) -> torch.Tensor:
    """Appends the row and the column of each pixel, from -1 to 1, as channels.

    Args:
        input: `(B, C, H, W)`.
        with_radius: Append the distance from the centre of the grid too.

    Returns:
        `(B, C + 2, H, W)`, or `C + 3`.
    """
    B, _, H, W = input.shape
    rows = _centred_axis(H, input)[:, None].expand(H, W)
    columns = _centred_axis(W, input).expand(H, W)
    coordinates = [rows, columns]
    if with_radius:
        coordinates.append(torch.sqrt(rows**2 + columns**2))
    return torch.cat([input, torch.stack(coordinates).expand(B, -1, H, W)], dim=1)


def _centred_axis(size: int, like: torch.Tensor) -> torch.Tensor:
    # The centre is 0 on an axis of one pixel too, where `linspace` would give -1.
    steps = torch.arange(size, device=like.device, dtype=like.dtype)
    return (2 * steps - (size - 1)) / max(size - 1, 1)


class CoordConv2d(nn.Module):
    """A grid-keeping convolution on the input with its coordinates appended.

    Args:
        in_channels: C.
        out_channels: Number of filters.
        kernel_size: Size of the kernel, odd: one number, or rows and columns.
        stride: Stride of both axes.
        padding_mode: `zeros`, `circular` or `longitude`.
        with_radius: Append the distance from the centre of the grid too.
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
        with_radius: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.with_radius = with_radius
        num_coordinates = 3 if with_radius else 2
        self.conv = GridConv2d(
            in_channels + num_coordinates,
            out_channels,
            kernel_size,
            stride=stride,
            padding_mode=padding_mode,
            device=device,
            dtype=dtype,
        )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Maps `(B, C, H, W)` to `(B, out_channels, H', W')`."""
        return self.conv(append_coordinates(input, self.with_radius))
