"""Small networks of the experiments."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from smoe.nn import GridConv2d, RoutedLayer, SharedBatchNorm2d
from smoe_paper.baselines import check_input
from smoe_paper.baselines.patch_moe import FeedForward, PatchMoE


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

    Args:
        grid: Rows and columns of `places`.
        places: What each pixel adds to the numbers of the globe, from 0 on: `none`; `constants`, to b and d; `all`.
    """

    def __init__(
        self,
        num_members: int,
        value_range: tuple[float, float] = (0.0, 1.0),
        grid: tuple[int, int] = (1, 1),
        places: Literal["none", "constants", "all"] = "none",
    ) -> None:
        super().__init__()
        self.low, self.high = value_range
        self.num_members = num_members
        self.mean = nn.Linear(num_members, 1)
        self.spread = nn.Linear(1, 1)
        self.constants = None if places == "none" else nn.Parameter(torch.zeros(*grid, 2))
        self.factors = nn.Parameter(torch.zeros(*grid, num_members + 1)) if places == "all" else None

    def forward(self, members: torch.Tensor) -> torch.Tensor:
        """`(B, M, H, W)` in physical units to `(B, 2, H, W)`."""
        check_input(members, self.num_members)
        scaled = ((members - self.low) / (self.high - self.low)).movedim(1, -1)
        spread = scaled.std(dim=-1, correction=0, keepdim=True)
        output = torch.cat([self.mean(scaled), self.spread(spread)], dim=-1)
        if self.constants is not None:
            output = output + self.constants
        if self.factors is not None:
            weighted = self.factors * torch.cat([scaled, spread], dim=-1)
            output = output + torch.stack([weighted[..., :-1].sum(dim=-1), weighted[..., -1]], dim=-1)
        return output.movedim(-1, 1)


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


class VisionTransformer(nn.Module):
    """`(B, in_channels, H, W)` to `(B, out_channels, H, W)`, by attention between the patches of the grid.

    Each patch becomes a token by a linear map; a fixed position embedding is added; after the blocks and a last layer
    norm, another linear map makes the pixels of the patch.

    Args:
        spatial_shape: Rows and columns of the grid, multiples of `patch_size`.
        width: Width of the tokens, a multiple of 4 and of `num_heads`.
        num_experts: Number of experts in every block; None for one feed-forward network in every block.
        capacity_factor: Capacity factor of the experts, see `PatchMoE`; each sample is a group of its own.
        positions: Add the position embedding.
    """

    position: torch.Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        spatial_shape: tuple[int, int],
        *,
        patch_size: int = 4,
        width: int = 128,
        num_heads: int = 4,
        depth: int = 1,
        hidden: int = 512,
        num_experts: int | None = None,
        capacity_factor: float = 1.05,
        positions: bool = True,
    ) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.spatial_shape = spatial_shape
        if self.spatial_shape[0] % patch_size or self.spatial_shape[1] % patch_size:
            raise ValueError(
                f"spatial_shape must be multiples of patch_size, got {self.spatial_shape} and patches of {patch_size}"
            )
        self.patch_size = patch_size
        rows, columns = (size // patch_size for size in self.spatial_shape)
        position = sine_cosine_position(rows, columns, width)
        self.register_buffer("position", position if positions else torch.zeros_like(position), persistent=False)
        self.embed = nn.Linear(in_channels * patch_size**2, width)
        blocks: list[nn.Module] = []
        for _ in range(depth):
            feed_forward = (
                FeedForward(width, hidden)
                if num_experts is None
                else PatchMoE(width, hidden, num_experts, capacity_factor=capacity_factor)
            )
            blocks.append(TransformerBlock(width, num_heads, feed_forward))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, out_channels * patch_size**2)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        expected = (self.in_channels, *self.spatial_shape)
        if input.ndim != 4 or tuple(input.shape[1:]) != expected:
            raise ValueError(
                f"the transformer was made for inputs of (B, {', '.join(map(str, expected))}), "
                f"got shape {tuple(input.shape)}"
            )
        # Patches row after row, the pixels of a channel together.
        patches = F.pixel_unshuffle(input, self.patch_size)
        tokens = self.embed(patches.flatten(2).transpose(1, 2)) + self.position
        output = self.head(self.norm(self.blocks(tokens)))
        return F.pixel_shuffle(output.transpose(1, 2).unflatten(2, patches.shape[2:]), self.patch_size)


class TransformerBlock(nn.Module):
    """Attention and then a feed-forward layer, each after a layer norm and in a residual branch.

    Args:
        feed_forward: Module from tokens `(B, N, D)` to `(B, N, D)`.
    """

    def __init__(self, width: int, num_heads: int, feed_forward: nn.Module) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = SelfAttention(width, num_heads)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.feed_forward = feed_forward

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        tokens = tokens + self.attention(self.attention_norm(tokens))
        return tokens + self.feed_forward(self.feed_forward_norm(tokens))


class SelfAttention(nn.Module):
    """Multi-head attention of every token `(B, N, D)` to all tokens of its sample, with biases."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)
        # Queries, keys and values are three maps that share one product: each starts as a map of its own.
        for weight in (*self.project_in.weight.detach().split(width), self.project_out.weight):
            nn.init.xavier_uniform_(weight)
        for linear in (self.project_in, self.project_out):
            nn.init.zeros_(linear.bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        heads = self.project_in(tokens).unflatten(2, (3, self.num_heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value)
        return self.project_out(attended.transpose(1, 2).flatten(2))


def sine_cosine_position(rows: int, columns: int, width: int) -> torch.Tensor:
    """Fixed embedding of the places of a grid, row after row.

    The first half of the channels depends on the row only, the second on the column only; each half holds the sines and
    then the cosines of `place / 10000 ** (4 i / width)`, i from 0 to `width / 4 - 1`: `(rows * columns, width)`.
    """
    # float64, because the sine of a large float32 angle loses digits.
    frequency = 10000.0 ** -(torch.arange(width // 4, dtype=torch.float64) / (width // 4))

    def waves(size: int) -> torch.Tensor:
        angles = torch.outer(torch.arange(size, dtype=torch.float64), frequency)
        return torch.cat([angles.sin(), angles.cos()], dim=1)

    of_rows = waves(rows).unsqueeze(1).expand(-1, columns, -1)
    of_columns = waves(columns).expand(rows, -1, -1)
    return torch.cat([of_rows, of_columns], dim=2).flatten(0, 1).to(torch.get_default_dtype())
