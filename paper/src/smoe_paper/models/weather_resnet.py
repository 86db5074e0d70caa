"""The ResNet of Rasp and Thuerey (2021) for fields on a globe: the baseline of the paper's section 3.2."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from smoe.nn import GridConv2d, SharedBatchNorm2d
from smoe_paper.baselines import check_input

MakeConv = Callable[[int, int], nn.Module]


def glorot_uniform_(weight: torch.Tensor, out_channels: int) -> None:
    """Draws kernels `(N, C, rows, columns)` as Keras does: uniform within sqrt(6 / (fan-in + fan-out))."""
    in_channels, rows, columns = weight.shape[1:]
    bound = math.sqrt(6.0 / (rows * columns * (in_channels + out_channels)))
    nn.init.uniform_(weight, -bound, bound)


def globe_conv(in_channels: int, out_channels: int, kernel_size: int = 3) -> GridConv2d:
    """A convolution on a globe: the longitude wraps, zeros beyond the poles; a bias from 0; Glorot's start."""
    conv = GridConv2d(in_channels, out_channels, kernel_size, padding_mode="longitude", bias=True)
    glorot_uniform_(conv.weight, out_channels)
    return conv


class ConvBlock(nn.Module):
    """A convolution, LeakyReLU of slope 0.3, batch normalisation and dropout, in this order."""

    def __init__(self, conv: nn.Module, channels: int, dropout: float) -> None:
        super().__init__()
        self.conv = conv
        # In place: the sign of the input follows from that of the output, and the convolution does not need its output.
        self.activation = nn.LeakyReLU(0.3, inplace=True)
        # Keras's momentum 0.99 is what the running mean keeps; torch's is what is new in it.
        self.norm = SharedBatchNorm2d(channels, eps=1e-3, momentum=0.01)
        self.dropout = nn.Dropout(dropout)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.norm(self.activation(self.conv(input))))


class ResidualBlock(nn.Module):
    """Two blocks whose output is added to their input; nothing after the sum."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first = first
        self.second = second

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return input + self.second(self.first(input))


class WeatherResNet(nn.Module):
    """Fields now to fields later: a wide first block, residual blocks, and a plain 3x3 convolution.

    With 117 inputs and 3 outputs it has 6,355,587 parameters; with 256 filters 23,917,827.

    Args:
        make_conv: Makes the convolutions of the residual blocks; `globe_conv` if None.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        filters: int = 128,
        num_blocks: int = 19,
        stem_kernel_size: int = 7,
        dropout: float = 0.1,
        make_conv: MakeConv | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = in_channels
        make_conv = globe_conv if make_conv is None else make_conv
        self.stem: nn.Module = ConvBlock(globe_conv(in_channels, filters, stem_kernel_size), filters, dropout)
        make_block = partial(ConvBlock, channels=filters, dropout=dropout)
        self.blocks = nn.Sequential(
            *(
                ResidualBlock(make_block(make_conv(filters, filters)), make_block(make_conv(filters, filters)))
                for _ in range(num_blocks)
            )
        )
        self.head: nn.Module = globe_conv(filters, out_channels)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, in_channels, H, W)` to `(B, out_channels, H, W)`; the grid is kept, whatever its size."""
        check_input(input, self.in_channels)
        return self.head(self.blocks(self.stem(input)))
