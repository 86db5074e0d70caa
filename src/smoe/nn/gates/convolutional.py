"""Gates made of convolutions: a convolution, a CoordConv, and three layers beginning with a CoordConv."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import nn

from smoe.nn.coord_conv import CoordConv2d
from smoe.nn.gates.gate import SpatialGate
from smoe.nn.grid_conv import GridConv2d
from smoe.options import Normalization, Order, PaddingMode


class NetworkGate(SpatialGate):
    """A gate whose scores `(B, X, H, W)` a small network computes from the input.

    Args:
        in_channels: C, the number of channels of the layer's input.
        num_experts: X, the number of experts in the bank.
        num_selected: E, the number of experts to select at each pixel.
        kernel_size: Odd size of the kernels.
        stride: Stride of the layer.
        padding_mode: `zeros`, `circular` or `longitude`.
        order: Order of the selected experts: `families`, `score` or `index`.
        normalization: `none`, `softmax`, `abs` or `abs_softmax`.
    """

    looks_at_input = True

    def __init__(
        self,
        in_channels: int,
        num_experts: int,
        num_selected: int,
        kernel_size: int | tuple[int, int] = 3,
        *,
        stride: int = 1,
        padding_mode: PaddingMode = "zeros",
        order: Order = "score",
        normalization: Normalization = "none",
    ) -> None:
        super().__init__(num_experts, num_selected, order=order, normalization=normalization)
        self.network = self.make_network(in_channels, kernel_size, stride, padding_mode)

    @abstractmethod
    def make_network(
        self, in_channels: int, kernel_size: int | tuple[int, int], stride: int, padding_mode: PaddingMode
    ) -> nn.Module:
        """Makes the network, with `num_experts` outputs."""

    def raw_scores(self, input: torch.Tensor | None) -> torch.Tensor:
        """The network applied to the input."""
        return self.network(input)


class ConvGate(NetworkGate):
    """One convolution without bias; arguments as `NetworkGate`."""

    def make_network(
        self, in_channels: int, kernel_size: int | tuple[int, int], stride: int, padding_mode: PaddingMode
    ) -> nn.Module:
        """The convolution."""
        return GridConv2d(in_channels, self.num_experts, kernel_size, stride=stride, padding_mode=padding_mode)


class CoordConvGate(NetworkGate):
    """One CoordConv without bias; arguments as `NetworkGate`."""

    def make_network(
        self, in_channels: int, kernel_size: int | tuple[int, int], stride: int, padding_mode: PaddingMode
    ) -> nn.Module:
        """The CoordConv."""
        return CoordConv2d(in_channels, self.num_experts, kernel_size, stride=stride, padding_mode=padding_mode)


class CoordConv3Gate(NetworkGate):
    """Three layers of X filters with batch norm and ReLU between: a CoordConv, then two convolutions.

    The paper writes of three CoordConv layers; its parameter count (255) and its code have one. Arguments as
    `NetworkGate`; the first layer takes the stride.
    """

    def make_network(
        self, in_channels: int, kernel_size: int | tuple[int, int], stride: int, padding_mode: PaddingMode
    ) -> nn.Module:
        """The three layers."""
        X = self.num_experts
        return nn.Sequential(
            CoordConv2d(in_channels, X, kernel_size, stride=stride, padding_mode=padding_mode),
            nn.BatchNorm2d(X),
            nn.ReLU(),
            GridConv2d(X, X, kernel_size, padding_mode=padding_mode),
            nn.BatchNorm2d(X),
            nn.ReLU(),
            GridConv2d(X, X, kernel_size, padding_mode=padding_mode),
        )
