"""Low-rank local convolutions: each pixel has its own combination of a few bases (Elsayed et al., 2020)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from smoe.ops import grid_conv2d, output_grid
from smoe.options import Combiner, PaddingMode
from smoe_paper.baselines import check_input, check_kernel_size, check_output_grid
from smoe_paper.baselines.layers import start_filters

DILATIONS = (1, 2, 4, 8)


class RowsAndColumns(nn.Module):
    """Maps `(num_maps, H, W)`, a number for each row plus one for each column, at the start a half each."""

    def __init__(self, num_maps: int, spatial_shape: tuple[int, int], start: float) -> None:
        super().__init__()
        height, width = spatial_shape
        self.rows = nn.Parameter(torch.full((num_maps, height), start / 2))
        self.columns = nn.Parameter(torch.full((num_maps, width), start / 2))

    def forward(self) -> torch.Tensor:
        return self.rows[:, :, None] + self.columns[:, None, :]


class Table(nn.Module):
    """Maps `(num_maps, H, W)` with a number for each pixel."""

    def __init__(self, num_maps: int, spatial_shape: tuple[int, int], start: float) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.full((num_maps, *spatial_shape), start))

    def forward(self) -> torch.Tensor:
        return self.table


class InputCombiner(nn.Module):
    """A small network that computes the combination `(B, K, H', W')` from the input, at several scales.

    The input is projected to K channels. These, their mean over the grid, and the result of a depthwise 3x3 convolution
    without padding for each dilation are resized to the output grid. Three 1x1 convolutions, with a ReLU and a sigmoid
    between, turn them into the K logits. A grid that is too small for a dilation is refused.
    """

    def __init__(self, in_channels: int, spatial_rank: int = 3, *, dilations: tuple[int, ...] = DILATIONS) -> None:
        super().__init__()
        self.dilations = tuple(dilations)
        K = spatial_rank

        def convolution(inputs: int, outputs: int) -> nn.Conv2d:
            # The authors' code has biases; the counts in the SMoE paper leave them out.
            return nn.Conv2d(inputs, outputs, 1, bias=False)

        self.reduce = convolution(in_channels, K)
        self.scales = nn.ModuleList(
            nn.Conv2d(K, K, 3, dilation=dilation, groups=K, bias=False) for dilation in dilations
        )
        # The widths 3 K and 6 K do not follow the number of branches, as in the authors' code.
        self.squeeze = convolution((2 + len(dilations)) * K, 3 * K)
        self.excite = convolution(3 * K, 6 * K)
        self.project = convolution(6 * K, K)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.xavier_uniform_(module.weight)

    def forward(self, input: torch.Tensor, grid: tuple[int, int] | None = None) -> torch.Tensor:
        """The logits of the combination."""
        check_input(input, self.reduce.in_channels)
        height, width = input.shape[2:]
        for dilation in self.dilations:
            if min(height, width) < 2 * dilation + 1:
                raise ValueError(
                    f"dilation {dilation} needs a grid of at least {2 * dilation + 1} rows and columns, got "
                    f"{(height, width)}: make the combiner with dilations={fitting_dilations((height, width))}"
                )
        grid = (height, width) if grid is None else grid
        reduced = self.reduce(input)
        everywhere = reduced.mean(dim=(2, 3), keepdim=True).expand(-1, -1, *grid)
        scales = [_resize(reduced, grid), everywhere, *(_resize(scale(reduced), grid) for scale in self.scales)]
        squeezed = F.relu(self.squeeze(torch.cat(scales, dim=1)))
        return self.project(torch.sigmoid(self.excite(squeezed)))


def fitting_dilations(spatial_shape: tuple[int, int]) -> tuple[int, ...]:
    """The dilations out of 1, 2, 4 and 8 whose 3x3 kernel fits in an input grid of rows and columns."""
    return tuple(dilation for dilation in DILATIONS if 2 * dilation + 1 <= min(spatial_shape))


def _resize(maps: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    if tuple(maps.shape[2:]) == grid:
        return maps
    return F.interpolate(maps, size=grid, mode="bilinear", align_corners=True)


class LowRankLocal2d(nn.Module):
    """`(B, C, H, W)` to `(B, out_channels, H', W')`; the grid is kept at stride 1.

    The output at a pixel is the sum over k of the weight a_k times the output of base convolution k at this pixel.
    There is no bias unless `spatial_bias` is set. Every combiner but `input` starts with equal weights, so that the
    layer starts as a convolution.

    Args:
        combiner: Source of the weights a: `rows_and_columns`, a number for each row plus one for each column; `table`,
            a number for each pixel; `input`, a network of the input.
        spatial_shape: Rows and columns of the output grid.
        spatial_bias: Add a bias that all filters share and that starts at 0: a row plus a column for
            `rows_and_columns`, otherwise a number for each pixel.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int] = 3,
        *,
        spatial_rank: int = 3,
        combiner: Combiner = "rows_and_columns",
        spatial_shape: tuple[int, int],
        spatial_bias: bool = False,
        stride: int = 1,
        padding_mode: PaddingMode = "zeros",
    ) -> None:
        super().__init__()
        self.kernel_size = check_kernel_size(kernel_size)
        self.stride = stride
        self.padding_mode: PaddingMode = padding_mode
        self.spatial_shape = spatial_shape
        self.spatial_rank = spatial_rank
        # Four dimensions, all filters of base 0 first: `.to(memory_format=torch.channels_last)` refuses five.
        shape = (spatial_rank * out_channels, in_channels, *self.kernel_size)
        self.weight = nn.Parameter(torch.empty(shape))
        start_filters(self.weight)
        maps = RowsAndColumns if combiner == "rows_and_columns" else Table
        # The combiner `input` has the dilations that fit in the smallest input with this output grid.
        rows, columns = ((size - 1) * stride + 1 for size in spatial_shape)
        if combiner == "input":
            dilations = fitting_dilations((rows, columns))
            self.combiner = InputCombiner(in_channels, spatial_rank, dilations=dilations)
        else:
            self.combiner = maps(spatial_rank, spatial_shape, 1.0 / math.sqrt(spatial_rank))
        self.spatial_bias = maps(1, spatial_shape, 0.0) if spatial_bias else None

    def combining_weights(self, input: torch.Tensor | None = None) -> torch.Tensor:
        """The weights a: `(K, H', W')`, or `(B, K, H', W')` for the combiner `input`."""
        if not isinstance(self.combiner, InputCombiner):
            return self.combiner().softmax(dim=-3)
        assert input is not None
        grid = output_grid(input.shape[2], input.shape[3], self.stride)
        return self.combiner(input, grid).softmax(dim=-3)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        check_input(input, self.weight.shape[1])
        check_output_grid(input, self.stride, self.spatial_shape)
        bases = grid_conv2d(input, self.weight, stride=self.stride, padding_mode=self.padding_mode)
        # As torch's convolutions do, the layer returns the dtype of its convolution, which autocast may lower.
        weights = self.combining_weights(input).to(bases.dtype).unsqueeze(-3)
        # One base after the other: with 64 filters 1.5 times as fast as a product with all and its sum, because nothing
        # K times the output is written. `einsum` is slower than both.
        first, *others = zip(bases.unflatten(1, (self.spatial_rank, -1)).unbind(1), weights.unbind(-4), strict=True)
        output = first[0] * first[1]
        for base, weight in others:
            output = torch.addcmul(output, base, weight)
        return output if self.spatial_bias is None else output + self.spatial_bias().to(output.dtype)

    def resize_grid(self, grid: tuple[int, int], resize: Callable[..., nn.Parameter]) -> None:
        """Takes the combining weights and the spatial bias to another output grid, for `smoe.interpolate_grids`."""
        for maps in (self.combiner, self.spatial_bias):
            if isinstance(maps, Table):
                maps.table = resize(maps.table)
            elif isinstance(maps, RowsAndColumns):
                maps.rows, maps.columns = resize(maps.rows, (0,)), resize(maps.columns, (1,))
        self.spatial_shape = grid
