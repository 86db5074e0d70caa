"""A plain network of grid-keeping layers: the convolutional baselines of the paper (section 3.1)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import nn


class ConvNet(nn.Module):
    """Layers one after another, with batch normalisation and ReLU between them and neither after the last.

    Args:
        make_layer: Makes a layer from the numbers of its input and output channels.
        channels: Numbers of channels of the input, of each hidden layer and of the output; at least two numbers.
    """

    def __init__(self, make_layer: Callable[[int, int], nn.Module], channels: Sequence[int]) -> None:
        super().__init__()
        if len(channels) < 2:
            raise ValueError(f"channels must name the input's and the output's at least, got {tuple(channels)}")
        layers: list[nn.Module] = []
        for in_channels, out_channels in itertools.pairwise(channels[:-1]):
            layers += [make_layer(in_channels, out_channels), nn.BatchNorm2d(out_channels), nn.ReLU()]
        self.layers = nn.Sequential(*layers, make_layer(channels[-2], channels[-1]))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, channels[0], H, W)` to `(B, channels[-1], H, W)`."""
        return self.layers(input)
