"""Small networks of the experiments."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import nn

from smoe.nn import GridConv2d, RoutedLayer, SharedBatchNorm2d
from smoe_paper.baselines import check_input


class ConvNet(nn.Module):
    """Layers one after another, with batch normalisation and ReLU between them and neither after the last.

    Args:
        channels: Numbers of channels of the input, of each hidden layer and of the output; at least two numbers.
        residual: Add the input of each layer to its output before the ReLU, as `--residuals` of the released code:
            where the number of channels changes, through a 1x1 convolution with batch normalisation.
    """

    def __init__(
        self, make_layer: Callable[[int, int], nn.Module], channels: Sequence[int], residual: bool = False
    ) -> None:
        super().__init__()
        if len(channels) < 2:
            raise ValueError(f"channels must name the input's and the output's at least, got {tuple(channels)}")
        layers: list[nn.Module] = []
        for number, (inputs, outputs) in enumerate(itertools.pairwise(channels), start=2):
            is_last = number == len(channels)
            block = [make_layer(inputs, outputs), *([] if is_last else [nn.BatchNorm2d(outputs)])]
            layers += [ResidualConv(block, inputs, outputs)] if residual else block
            layers += [] if is_last else [nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, channels[0], H, W)` to `(B, channels[-1], H, W)`."""
        return self.layers(input)


class ResidualConv(nn.Module):
    """Layers whose input is added to their output."""

    def __init__(self, layers: Sequence[nn.Module], in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.skip = nn.Sequential()
        if in_channels != out_channels:
            self.skip.extend([GridConv2d(in_channels, out_channels, 1, bias=False), nn.BatchNorm2d(out_channels)])

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.layers(input) + self.skip(input)


class FullyConnectedNet(nn.Module):
    """One field to one field of the same grid, without bias."""

    def __init__(self, spatial_shape: tuple[int, int]) -> None:
        super().__init__()
        self.spatial_shape = spatial_shape
        num_pixels = self.spatial_shape[0] * self.spatial_shape[1]
        self.linear = nn.Linear(num_pixels, num_pixels, bias=False)
        # The last layer of a network, so without the gain of a ReLU behind it.
        nn.init.kaiming_uniform_(self.linear.weight, nonlinearity="linear")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, 1, H, W)` to `(B, 1, H, W)`."""
        if tuple(input.shape[1:]) != (1, *self.spatial_shape):
            raise ValueError(
                f"the network was made for inputs (B, 1, {self.spatial_shape[0]}, {self.spatial_shape[1]}), "
                f"got {tuple(input.shape)}"
            )
        return self.linear(input.flatten(1)).view_as(input)


class SpatialMoENet(nn.Module):
    """One SMoE layer whose selected experts' outputs are summed to one field.

    With one expert of one output per pixel the sum is the output itself.
    """

    def __init__(self, layer: RoutedLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, C, H, W)` to `(B, 1, H, W)`."""
        output = self.layer(input)
        return output if output.shape[1] == 1 else output.sum(dim=1, keepdim=True)


class ImageClassifier(nn.Module):
    """Layers with batch normalisation and ReLU after each, the mean over all pixels, and a linear map to the classes.

    Args:
        layers: Layers from `(B, C, H, W)` to `(B, C', H', W')`, applied one after the other.
    """

    def __init__(self, layers: Sequence[nn.Module], channels: Sequence[int], num_classes: int) -> None:
        super().__init__()
        if not layers or len(layers) != len(channels):
            raise ValueError(f"channels must be one number for each layer, got {len(channels)} for {len(layers)}")
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList(SharedBatchNorm2d(number) for number in channels)
        self.head = nn.Linear(channels[-1], num_classes)
        # The last layer of a network, so without the gain of a ReLU behind it.
        nn.init.kaiming_uniform_(self.head.weight, nonlinearity="linear")
        nn.init.zeros_(self.head.bias)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, C, H, W)` to logits `(B, N)`."""
        hidden = input
        for layer, norm in zip(self.layers, self.norms, strict=True):
            hidden = nn.functional.relu(norm(layer(hidden)), inplace=True)
        return self.head(hidden.mean(dim=(2, 3)))


class Emos(nn.Module):
    """Two linear regressions for the whole globe: one of the members, one of their spread.

    With the members scaled to about [0, 1], `o0 = sum_i a_i x_i + b` and `o1 = c std(x) + d`, where the standard
    deviation divides by M; `gaussian_head` makes a forecast of them. M + 3 parameters, which start as those of
    `torch.nn.Linear`.
    """

    def __init__(self, num_members: int, value_range: tuple[float, float] = (0.0, 1.0)) -> None:
        super().__init__()
        self.low, self.high = value_range
        self.num_members = num_members
        self.mean = nn.Linear(num_members, 1)
        self.spread = nn.Linear(1, 1)

    def forward(self, members: torch.Tensor) -> torch.Tensor:
        """`(B, M, H, W)` in physical units to `(B, 2, H, W)`."""
        check_input(members, self.num_members)
        scaled = ((members - self.low) / (self.high - self.low)).movedim(1, -1)
        spread = scaled.std(dim=-1, correction=0, keepdim=True)
        return torch.cat([self.mean(scaled), self.spread(spread)], dim=-1).movedim(-1, 1)
