"""Convolutions that the paper compares with: CondConv, CoordConv, locally connected, and with learned channels."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from smoe.nn import GridConv2d, SpatialGate
from smoe.ops import local_conv2d
from smoe.options import Order
from smoe_paper.baselines import check_input, check_kernel_size, check_output_grid


class CondConv2d(nn.Module):
    """`(B, C, H, W)` to `(B, out_channels, H, W)`, zeros beyond the border, without bias.

    The kernel of a sample is the sum of all experts' kernels, each times the sigmoid of its score; the scores are a
    linear function, with bias, of the sample's mean over the grid. So a kernel depends on the values of the sample,
    never on the place where it is applied.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int = 3, *, num_experts: int = 3) -> None:
        super().__init__()
        self.kernel_size = check_kernel_size(kernel_size)
        self.num_experts = num_experts
        # Four dimensions, all filters of expert 0 first: `.to(memory_format=torch.channels_last)` refuses five.
        self.weight = nn.Parameter(torch.empty(num_experts * out_channels, in_channels, *self.kernel_size))
        start_filters(self.weight)
        self.router = nn.Linear(in_channels, num_experts)

    def mixing_weights(self, input: torch.Tensor) -> torch.Tensor:
        """The weights of the experts in each sample's kernel, `(B, num_experts)`, each in (0, 1)."""
        return torch.sigmoid(self.router(input.mean(dim=(2, 3))))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        in_channels, out_channels = self.weight.shape[1], self.weight.shape[0] // self.num_experts
        check_input(input, in_channels)
        B = input.shape[0]
        kernels = self.mixing_weights(input) @ self.weight.reshape(self.num_experts, -1)
        # Mixed kernels in one convolution of a group per sample, because its cost does not grow with the experts. Every
        # expert's convolution and then a mix took 3 to 28 times as long (3 experts, forward and backward, one thread),
        # 0.6 times only where 12 channels become 1.
        output = F.conv2d(
            input.reshape(1, B * in_channels, *input.shape[2:]),
            kernels.reshape(B * out_channels, in_channels, *self.kernel_size),
            padding="same",
            groups=B,
        )
        return output.reshape(B, out_channels, *output.shape[2:])


def append_coordinates(input: torch.Tensor) -> torch.Tensor:
    """Appends the row and the column of each pixel, from -1 to 1: `(B, C, H, W)` to `(B, C + 2, H, W)`."""
    B, _, H, W = input.shape
    coordinates = torch.stack([_centred_axis(H, input)[:, None].expand(H, W), _centred_axis(W, input).expand(H, W)])
    return torch.cat([input, coordinates.expand(B, -1, H, W)], dim=1)


def _centred_axis(size: int, like: torch.Tensor) -> torch.Tensor:
    # The centre is 0 on an axis of one pixel too, where `linspace` would give -1.
    steps = torch.arange(size, device=like.device, dtype=like.dtype)
    return (2 * steps - (size - 1)) / max(size - 1, 1)


class CoordConv2d(nn.Module):
    """A grid-keeping convolution on the input with its coordinates appended; arguments as `smoe.nn.GridConv2d`."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int | tuple[int, int] = 3, **options: Any
    ) -> None:
        super().__init__()
        self.conv = GridConv2d(in_channels + 2, out_channels, kernel_size, **options)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.conv(append_coordinates(input))


class LocallyConnected2d(nn.Module):
    """`(B, C, H, W)` to `(B, out_channels, H, W)`, zeros beyond the border, without bias."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int = 3, *, spatial_shape: tuple[int, int]
    ) -> None:
        super().__init__()
        self.spatial_shape = spatial_shape
        sizes = check_kernel_size(kernel_size)
        self.weight = nn.Parameter(torch.empty(out_channels, *spatial_shape, in_channels, *sizes))
        start_filters(self.weight)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        check_output_grid(input, 1, self.spatial_shape)
        return local_conv2d(input, self.weight)


def start_filters(weight: torch.Tensor) -> None:
    """Draws filters `(..., C, kh, kw)` uniformly, of a fan-in of C kh kw, the values that enter one output."""
    bound = math.sqrt(6.0 / math.prod(weight.shape[-3:]))
    nn.init.uniform_(weight, -bound, bound)


class LearnedChannels(nn.Module):
    """Appends channels of learned numbers, one for each pixel, to its input. They start at 0."""

    def __init__(self, num_channels: int, spatial_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.fields = nn.Parameter(torch.zeros(num_channels, *spatial_shape))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, C, *grid)` to `(B, C + num_channels, *grid)`."""
        if input.shape[2:] != self.fields.shape[1:]:
            made_for, got = tuple(self.fields.shape[1:]), tuple(input.shape[2:])
            raise ValueError(f"the learned channels were made for a grid of {made_for}, got {got}")
        fields = self.fields.to(input.dtype).expand(input.shape[0], *self.fields.shape)
        return torch.cat((input, fields), dim=1)


class NetworkGate(SpatialGate):
    """A gate whose scores `(B, X, H, W)` a small network without bias computes from the input.

    Args:
        *args: Positional arguments of `make_network`.
        order: Order of the selected experts: `families`, `score` or `index`.
        **options: Keyword arguments of `make_network`, such as `stride` and `padding_mode` of the layer.
    """

    looks_at_input = True

    def __init__(
        self,
        in_channels: int,
        num_experts: int,
        num_selected: int,
        *args: Any,
        order: Order = "score",
        **options: Any,
    ) -> None:
        super().__init__(num_experts, num_selected, order=order)
        self.network = self.make_network(in_channels, *args, **options)

    @abstractmethod
    def make_network(self, in_channels: int, *args: Any, **options: Any) -> nn.Module:
        """Makes the network, with `num_experts` outputs."""

    def raw_scores(self, input: torch.Tensor | None) -> torch.Tensor:
        return self.network(input)


class ConvGate(NetworkGate):
    def make_network(self, in_channels: int, kernel_size: int | tuple[int, int] = 3, **options: Any) -> nn.Module:
        return GridConv2d(in_channels, self.num_experts, kernel_size, **options)


class CoordConvGate(NetworkGate):
    def make_network(self, in_channels: int) -> nn.Module:
        return CoordConv2d(in_channels, self.num_experts)


class CoordConv3Gate(NetworkGate):
    """Three layers of X filters with batch norm and ReLU between: a CoordConv, then two convolutions.

    The paper writes of three CoordConv layers; its parameter count (255) and its code have one.
    """

    def make_network(self, in_channels: int) -> nn.Module:
        X = self.num_experts
        layers: list[nn.Module] = [CoordConv2d(in_channels, X)]
        for _ in range(2):
            layers += [nn.BatchNorm2d(X), nn.ReLU(), GridConv2d(X, X)]
        return nn.Sequential(*layers)


class LocallyConnectedGate(NetworkGate):
    def make_network(self, in_channels: int, spatial_shape: tuple[int, int]) -> nn.Module:
        return LocallyConnected2d(in_channels, self.num_experts, spatial_shape=spatial_shape)

    @property
    def spatial_shape(self) -> tuple[int, int]:
        assert isinstance(self.network, LocallyConnected2d)
        return self.network.spatial_shape


class LinearGate(NetworkGate):
    """One linear layer of `C * H * W * X * H * W` weights: 50 million on the 64 x 64 grid of heat."""

    def make_network(self, in_channels: int, spatial_shape: tuple[int, int]) -> nn.Module:
        self._spatial_shape, num_pixels = spatial_shape, math.prod(spatial_shape)
        return nn.Linear(in_channels * num_pixels, self.num_experts * num_pixels, bias=False)

    @property
    def spatial_shape(self) -> tuple[int, int]:
        return self._spatial_shape

    def raw_scores(self, input: torch.Tensor | None) -> torch.Tensor:
        assert input is not None
        check_output_grid(input, 1, self._spatial_shape)
        return self.network(input.flatten(1)).unflatten(1, (self.num_experts, *self._spatial_shape))
