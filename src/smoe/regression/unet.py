"""The U-Net of ENS-10 (Ashkboos et al. 2022), which corrects an ensemble's forecast: paper section 3.3."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from smoe.nn import SharedBatchNorm2d
from smoe.nn._grid_layers import GridConv2d
from smoe.nn._routed_layer import check_input, check_positive
from smoe.options import PaddingMode


def start_as_torch(weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Draws kernels `(N, C, rows, columns)` and biases as `torch.nn.Conv2d` does: uniform within 1 / sqrt(fan-in)."""
    bound = 1.0 / math.sqrt(weight[0].numel())
    nn.init.uniform_(weight, -bound, bound)
    if bias is not None:
        nn.init.uniform_(bias, -bound, bound)


class UNetBlock(nn.Module):
    """Two times: a 3x3 convolution, batch normalisation and ReLU.

    Args:
        in_channels: Number of channels of the input.
        hidden: Number of filters of the first convolution.
        out_channels: Number of filters of the second convolution.
        padding_mode: Padding mode of both convolutions.
    """

    def __init__(self, in_channels: int, hidden: int, out_channels: int, padding_mode: PaddingMode) -> None:
        super().__init__()
        self.first = _make_conv(in_channels, hidden, padding_mode)
        self.first_norm = SharedBatchNorm2d(hidden)
        self.second = _make_conv(hidden, out_channels, padding_mode)
        self.second_norm = SharedBatchNorm2d(out_channels)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, in_channels, H, W)` to `(B, out_channels, H, W)`."""
        hidden = F.relu(self.first_norm(self.first(input)), inplace=True)
        return F.relu(self.second_norm(self.second(hidden)), inplace=True)


class UNet(nn.Module):
    """Mean and spread of an ensemble's fields to two numbers for each pixel, which a head makes a forecast of.

    Three levels, each of half the rows and columns of the one before, with twice the filters; bilinear upsampling; the
    output of a level of the encoder goes before that of the decoder's next lower level into the decoder. 633,698
    parameters for 14 channels and 636,002 for 22, as ENS-10's.

    An odd number of rows (361) loses its last one on the way down; on the way up the first one is repeated, as in
    ENS-10, which moves the lower levels' rows by half a pixel.

    Args:
        in_channels: Number of input fields.
        out_channels: Number of outputs for each pixel.
        filters: Number of filters of the first level.
        padding_mode: `zeros`, as in ENS-10; `longitude` joins the first and the last column in convolutions and
            upsampling, a difference to ENS-10 that leaves no seam in the fields.
    """

    def __init__(
        self, in_channels: int, out_channels: int = 2, *, filters: int = 32, padding_mode: PaddingMode = "zeros"
    ) -> None:
        super().__init__()
        check_positive(in_channels=in_channels, out_channels=out_channels, filters=filters)
        if padding_mode == "circular":
            raise ValueError("padding_mode must be zeros or longitude, as the poles do not meet, got 'circular'")
        self.in_channels = in_channels
        self.padding_mode: PaddingMode = padding_mode
        f = filters
        self.encoder = nn.ModuleList(
            [
                UNetBlock(in_channels, f, f, padding_mode),
                UNetBlock(f, 2 * f, 2 * f, padding_mode),
                UNetBlock(2 * f, 4 * f, 4 * f, padding_mode),
            ]
        )
        self.decoder = nn.ModuleList(
            [
                UNetBlock(4 * f, 4 * f, 2 * f, padding_mode),
                UNetBlock(4 * f, 2 * f, f, padding_mode),
                UNetBlock(2 * f, f, f, padding_mode),
            ]
        )
        self.head = _make_conv(f, out_channels, padding_mode)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, in_channels, H, W)` to `(B, out_channels, H, W)`; any H from 4 on, W a multiple of 4."""
        check_input(input, self.in_channels)
        rows, columns = input.shape[2:]
        if rows < 4 or columns % 4:
            raise ValueError(f"the grid must have 4 rows or more and a multiple of 4 columns, got {rows} x {columns}")
        fine = self.encoder[0](input)
        middle = self.encoder[1](F.max_pool2d(fine, 2))
        coarse = self.decoder[0](self.encoder[2](F.max_pool2d(middle, 2)))
        middle = self.decoder[1](self._join(middle, coarse))
        return self.head(self.decoder[2](self._join(fine, middle)))

    def _join(self, skipped: torch.Tensor, coarse: torch.Tensor) -> torch.Tensor:
        """What the encoder left at this level, and then the level below, upsampled."""
        fine = self._upsample(coarse)
        if fine.shape[2] < skipped.shape[2]:
            fine = F.pad(fine, (0, 0, 1, 0), mode="replicate")
        return torch.cat([skipped, fine], dim=1)

    def _upsample(self, coarse: torch.Tensor) -> torch.Tensor:
        if self.padding_mode == "zeros":
            return F.interpolate(coarse, scale_factor=2.0, mode="bilinear", align_corners=False)
        wrapped = F.pad(coarse, (1, 1, 0, 0), mode="circular")
        return F.interpolate(wrapped, scale_factor=2.0, mode="bilinear", align_corners=False)[..., 2:-2]


def _make_conv(in_channels: int, out_channels: int, padding_mode: PaddingMode) -> GridConv2d:
    conv = GridConv2d(in_channels, out_channels, 3, padding_mode=padding_mode, bias=True)
    start_as_torch(conv.weight, conv.bias)
    return conv
