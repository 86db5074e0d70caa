"""Gates that look at their input (paper, table 2)."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import nn

from smoe.nn import GridConv2d, SpatialGate
from smoe.options import Normalization, Order
from smoe_paper.baselines.layers import CoordConv2d, LocallyConnected2d


class LinearGate(SpatialGate):
    """Scores `(B, X, H, W)` from one linear layer without bias.

    It has `C * H_in * W_in * X * H * W` weights: 50 million on the 64 x 64 grid of the heat experiment.

    Args:
        order: Order of the selected experts: `families`, `score` or `index`.
        normalization: `none`, `softmax`, `abs` or `abs_softmax`.
    """

    looks_at_input = True

    def __init__(
        self,
        in_channels: int,
        num_experts: int,
        num_selected: int,
        spatial_shape: tuple[int, int],
        *,
        input_shape: tuple[int, int] | None = None,
        order: Order = "score",
        normalization: Normalization = "none",
    ) -> None:
        super().__init__(num_experts, num_selected, order=order, normalization=normalization)
        self._spatial_shape = spatial_shape
        self.input_shape = input_shape or spatial_shape
        num_inputs = in_channels * self.input_shape[0] * self.input_shape[1]
        num_scores = num_experts * self._spatial_shape[0] * self._spatial_shape[1]
        self.linear = nn.Linear(num_inputs, num_scores, bias=False)

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
        return self.linear(input.flatten(1)).unflatten(1, (self.num_experts, *self.spatial_shape))


class NetworkGate(SpatialGate):
    """A gate whose scores `(B, X, H, W)` a small network computes from the input.

    Args:
        order: Order of the selected experts: `families`, `score` or `index`.
        normalization: `none`, `softmax`, `abs` or `abs_softmax`.
        **options: `stride` and `padding_mode` of the layer.
    """

    looks_at_input = True

    def __init__(
        self,
        in_channels: int,
        num_experts: int,
        num_selected: int,
        kernel_size: int | tuple[int, int] = 3,
        *,
        order: Order = "score",
        normalization: Normalization = "none",
        **options: Any,
    ) -> None:
        super().__init__(num_experts, num_selected, order=order, normalization=normalization)
        self.network = self.make_network(in_channels, kernel_size, **options)

    @abstractmethod
    def make_network(self, in_channels: int, kernel_size: int | tuple[int, int], **options: Any) -> nn.Module:
        """Makes the network, with `num_experts` outputs."""

    def raw_scores(self, input: torch.Tensor | None) -> torch.Tensor:
        return self.network(input)


class ConvGate(NetworkGate):
    """One convolution without bias; arguments as `NetworkGate`."""

    def make_network(self, in_channels: int, kernel_size: int | tuple[int, int], **options: Any) -> nn.Module:
        return GridConv2d(in_channels, self.num_experts, kernel_size, **options)


class CoordConvGate(NetworkGate):
    """One CoordConv without bias; arguments as `NetworkGate`."""

    def make_network(self, in_channels: int, kernel_size: int | tuple[int, int], **options: Any) -> nn.Module:
        return CoordConv2d(in_channels, self.num_experts, kernel_size, **options)


class CoordConv3Gate(NetworkGate):
    """Three layers of X filters with batch norm and ReLU between: a CoordConv, then two convolutions.

    The paper writes of three CoordConv layers; its parameter count (255) and its code have one. Arguments as
    `NetworkGate`; the first layer takes the stride.
    """

    def make_network(self, in_channels: int, kernel_size: int | tuple[int, int], **options: Any) -> nn.Module:
        X, padding_mode = self.num_experts, options.get("padding_mode", "zeros")
        return nn.Sequential(
            CoordConv2d(in_channels, X, kernel_size, **options),
            nn.BatchNorm2d(X),
            nn.ReLU(),
            GridConv2d(X, X, kernel_size, padding_mode=padding_mode),
            nn.BatchNorm2d(X),
            nn.ReLU(),
            GridConv2d(X, X, kernel_size, padding_mode=padding_mode),
        )


class LocallyConnectedGate(SpatialGate):
    """Scores `(B, X, H, W)` from a locally connected layer without bias; arguments as `NetworkGate`."""

    looks_at_input = True

    def __init__(
        self,
        in_channels: int,
        num_experts: int,
        num_selected: int,
        spatial_shape: tuple[int, int],
        kernel_size: int = 3,
        *,
        order: Order = "score",
        normalization: Normalization = "none",
        **options: Any,
    ) -> None:
        super().__init__(num_experts, num_selected, order=order, normalization=normalization)
        self.local = LocallyConnected2d(in_channels, num_experts, kernel_size, spatial_shape=spatial_shape, **options)

    @property
    def spatial_shape(self) -> tuple[int, int]:
        return self.local.spatial_shape

    def raw_scores(self, input: torch.Tensor | None) -> torch.Tensor:
        return self.local(input)
