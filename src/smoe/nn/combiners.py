"""The weight of each base at each pixel of a low-rank local layer (Elsayed et al., 2020)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from smoe.nn.grid_checks import check_input, check_positive
from smoe.options import CombinerNormalization

DILATIONS = (1, 2, 4, 8)


def normalize_combination(logits: torch.Tensor, normalization: CombinerNormalization) -> torch.Tensor:
    """Normalises over the bases, the third axis from the end: to the sum 1, to the L2 norm 1, or not at all."""
    if normalization == "softmax":
        return logits.softmax(dim=-3)
    if normalization == "norm":
        # Logits of a norm below 1e-6 are divided by 1e-6, as in the authors' code: zeros stay zeros.
        return F.normalize(logits, dim=-3, eps=1e-6)
    return logits


class RowsAndColumns(nn.Module):
    """Maps `(num_maps, H, W)` that are a number for each row plus a number for each column.

    Args:
        num_maps: Number of maps.
        spatial_shape: H and W.
        start: Value of every map at the start, half of it in the rows.
        device: Device of the parameters.
        dtype: Data type of the parameters.
    """

    def __init__(
        self,
        num_maps: int,
        spatial_shape: tuple[int, int],
        start: float,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        height, width = spatial_shape
        self.rows = nn.Parameter(torch.full((num_maps, height), start / 2, device=device, dtype=dtype))
        self.columns = nn.Parameter(torch.full((num_maps, width), start / 2, device=device, dtype=dtype))

    def forward(self) -> torch.Tensor:
        """Returns the maps."""
        return self.rows[:, :, None] + self.columns[:, None, :]


class Table(nn.Module):
    """Maps `(num_maps, H, W)` with a number for each pixel; arguments as `RowsAndColumns`."""

    def __init__(
        self,
        num_maps: int,
        spatial_shape: tuple[int, int],
        start: float,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.full((num_maps, *spatial_shape), start, device=device, dtype=dtype))

    def forward(self) -> torch.Tensor:
        """Returns the maps."""
        return self.table


class InputCombiner(nn.Module):
    """A small network that computes the combination `(B, K, H', W')` from the input, at several scales.

    The input is projected to K channels. These, their mean over the grid, and the result of a depthwise 3x3 convolution
    without padding for each dilation are resized to the output grid. Three 1x1 convolutions, with a ReLU and a sigmoid
    between, turn them into the K logits.

    A convolution of dilation d needs 2 d + 1 rows and columns. The branches are fixed at construction, because they
    decide the channels of the next convolution: an input too small for one of them is refused. For a grid below 17,
    pass the dilations that fit, `dilations=fitting_dilations(grid)`; the authors' code leaves out the same ones.

    Args:
        in_channels: C.
        spatial_rank: K.
        dilations: Dilations of the depthwise convolutions; may be empty.
        bias: Use a bias in every convolution. The authors' code has biases; the counts in the SMoE paper leave them
            out.
        device: Device of the weights.
        dtype: Data type of the weights.
    """

    def __init__(
        self,
        in_channels: int,
        spatial_rank: int = 3,
        *,
        dilations: tuple[int, ...] = DILATIONS,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(in_channels=in_channels, spatial_rank=spatial_rank)
        for dilation in dilations:
            check_positive(dilation=dilation)
        self.dilations = tuple(dilations)
        K = spatial_rank

        def convolution(inputs: int, outputs: int) -> nn.Conv2d:
            return nn.Conv2d(inputs, outputs, 1, bias=bias, device=device, dtype=dtype)

        self.reduce = convolution(in_channels, K)
        self.scales = nn.ModuleList(
            nn.Conv2d(K, K, 3, dilation=dilation, groups=K, bias=bias, device=device, dtype=dtype)
            for dilation in dilations
        )
        # The widths 3 K and 6 K do not follow the number of branches, as in the authors' code.
        self.squeeze = convolution((2 + len(dilations)) * K, 3 * K)
        self.excite = convolution(3 * K, 6 * K)
        self.project = convolution(6 * K, K)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, input: torch.Tensor, grid: tuple[int, int] | None = None) -> torch.Tensor:
        """Returns the logits of the combination.

        Args:
            input: Input of the layer, `(B, C, H, W)`.
            grid: H' and W' of the layer's output; those of the input if None.
        """
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
    """Returns the dilations out of 1, 2, 4 and 8 whose 3x3 kernel fits in an input grid of rows and columns."""
    return tuple(dilation for dilation in DILATIONS if 2 * dilation + 1 <= min(spatial_shape))


def _resize(maps: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    if tuple(maps.shape[2:]) == grid:
        return maps
    return F.interpolate(maps, size=grid, mode="bilinear", align_corners=True)
