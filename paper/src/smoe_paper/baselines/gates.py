"""Gates that look at their input (paper, table 2)."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import nn

from smoe.nn import GridConv2d, SpatialGate
from smoe.options import Order
from smoe_paper.baselines.layers import CoordConv2d, LocallyConnected2d


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
    """One convolution."""

    def make_network(self, in_channels: int, kernel_size: int | tuple[int, int] = 3, **options: Any) -> nn.Module:
        return GridConv2d(in_channels, self.num_experts, kernel_size, **options)


class CoordConvGate(NetworkGate):
    """One CoordConv."""

    def make_network(self, in_channels: int, kernel_size: int | tuple[int, int] = 3, **options: Any) -> nn.Module:
        return CoordConv2d(in_channels, self.num_experts, kernel_size, **options)


class CoordConv3Gate(NetworkGate):
    """Three layers of X filters with batch norm and ReLU between: a CoordConv, then two convolutions.

    The paper writes of three CoordConv layers; its parameter count (255) and its code have one. The first layer takes
    the stride.
    """

    def make_network(self, in_channels: int, kernel_size: int | tuple[int, int] = 3, **options: Any) -> nn.Module:
        X, padding = self.num_experts, {"padding_mode": options.get("padding_mode", "zeros")}
        layers: list[nn.Module] = [CoordConv2d(in_channels, X, kernel_size, **options)]
        for _ in range(2):
            layers += [nn.BatchNorm2d(X), nn.ReLU(), GridConv2d(X, X, kernel_size, **padding)]
        return nn.Sequential(*layers)


class LocallyConnectedGate(NetworkGate):
    """A locally connected layer."""

    def make_network(
        self, in_channels: int, spatial_shape: tuple[int, int], kernel_size: int = 3, **options: Any
    ) -> nn.Module:
        return LocallyConnected2d(in_channels, self.num_experts, kernel_size, spatial_shape=spatial_shape, **options)

    @property
    def spatial_shape(self) -> tuple[int, int]:
        assert isinstance(self.network, LocallyConnected2d)
        return self.network.spatial_shape


class LinearGate(NetworkGate):
    """One linear layer of `C * H_in * W_in * X * H * W` weights: 50 million on the 64 x 64 grid of heat."""

    def make_network(
        self, in_channels: int, spatial_shape: tuple[int, int], *, input_shape: tuple[int, int] | None = None
    ) -> nn.Module:
        self._spatial_shape, self.input_shape = spatial_shape, input_shape or spatial_shape
        num_inputs = in_channels * self.input_shape[0] * self.input_shape[1]
        return nn.Linear(num_inputs, self.num_experts * spatial_shape[0] * spatial_shape[1], bias=False)

    @property
    def spatial_shape(self) -> tuple[int, int]:
        return self._spatial_shape

    def raw_scores(self, input: torch.Tensor | None) -> torch.Tensor:
        assert input is not None
        if tuple(input.shape[2:]) != self.input_shape:
            raise ValueError(
                f"the gate was made for an input grid of {self.input_shape}, got {tuple(input.shape[2:])}; "
                "a linear gate works on one grid only"
            )
        return self.network(input.flatten(1)).unflatten(1, (self.num_experts, *self.spatial_shape))
