"""A low-rank locally connected layer as its paper describes it, pixel by pixel."""

from __future__ import annotations

import torch
from torch import nn

from definitions import loop_conv2d
from smoe_paper.baselines.low_rank import InputCombiner, LowRankLocal2d, RowsAndColumns, Table


def loop_resize(maps: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    """Bilinear, corners on corners: a pixel between four others takes of each by its nearness."""
    height, width = maps.shape[2:]
    rows = []
    for h in range(grid[0]):
        row = h * (height - 1) / max(grid[0] - 1, 1)
        top = min(int(row), max(height - 2, 0))
        below = min(top + 1, height - 1)
        columns = []
        for w in range(grid[1]):
            column = w * (width - 1) / max(grid[1] - 1, 1)
            left = min(int(column), max(width - 2, 0))
            right = min(left + 1, width - 1)
            down, along = row - top, column - left
            upper = (1 - along) * maps[:, :, top, left] + along * maps[:, :, top, right]
            lower = (1 - along) * maps[:, :, below, left] + along * maps[:, :, below, right]
            columns.append((1 - down) * upper + down * lower)
        rows.append(torch.stack(columns, dim=-1))
    return torch.stack(rows, dim=-2)


def loop_depthwise(maps: torch.Tensor, convolution: nn.Module, dilation: int) -> torch.Tensor:
    """Each map with its own 3x3 kernel, whose taps lie `dilation` apart; no padding."""
    assert isinstance(convolution, nn.Conv2d)
    height, width = maps.shape[2] - 2 * dilation, maps.shape[3] - 2 * dilation
    total = torch.zeros(*maps.shape[:2], height, width, dtype=maps.dtype)
    for i in range(3):
        for j in range(3):
            top, left = i * dilation, j * dilation
            taps = convolution.weight[:, 0, i, j, None, None]
            total = total + taps * maps[:, :, top : top + height, left : left + width]
    return total


def loop_pointwise(maps: torch.Tensor, convolution: nn.Conv2d) -> torch.Tensor:
    """Each output is a sum of the maps, with a number for each."""
    rows = convolution.weight[:, :, 0, 0]
    return torch.stack([(row[None, :, None, None] * maps).sum(dim=1) for row in rows], dim=1)


def define_input_combiner(combiner: InputCombiner, input: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    """The network, step by step."""
    reduced = loop_pointwise(input, combiner.reduce)
    mean = reduced.sum(dim=(2, 3), keepdim=True) / (reduced.shape[2] * reduced.shape[3])
    branches = [reduced, mean]
    for dilation, scale in zip(combiner.dilations, combiner.scales, strict=True):
        branches.append(loop_depthwise(reduced, scale, dilation))
    scales = torch.cat([loop_resize(branch, grid) for branch in branches], dim=1)
    squeezed = loop_pointwise(scales, combiner.squeeze).clamp(min=0)
    excited = 1 / (1 + torch.exp(-loop_pointwise(squeezed, combiner.excite)))
    return loop_pointwise(excited, combiner.project)


def define_maps(maps: nn.Module, h: int, w: int) -> torch.Tensor:
    """What a map holds at a pixel."""
    if isinstance(maps, RowsAndColumns):
        return maps.rows[:, h] + maps.columns[:, w]
    assert isinstance(maps, Table)
    return maps.table[:, h, w]


def define_low_rank_local(layer: LowRankLocal2d, input: torch.Tensor) -> torch.Tensor:
    """Sample by sample and pixel by pixel: the bases' convolutions, combined."""
    bases = [
        loop_conv2d(input, base, layer.stride, layer.padding_mode)
        for base in layer.weight.unflatten(0, (layer.spatial_rank, -1))
    ]
    B, _, H, W = bases[0].shape
    logits_of_input = torch.empty(0)
    if isinstance(layer.combiner, InputCombiner):
        logits_of_input = define_input_combiner(layer.combiner, input, (H, W))
    output = torch.zeros_like(bases[0])
    for b in range(B):
        for h in range(H):
            for w in range(W):
                if isinstance(layer.combiner, InputCombiner):
                    logits = logits_of_input[b, :, h, w]
                else:
                    logits = define_maps(layer.combiner, h, w)
                weights = torch.exp(logits) / torch.exp(logits).sum()
                for k, base in enumerate(bases):
                    output[b, :, h, w] += weights[k] * base[b, :, h, w]
                if layer.spatial_bias is not None:
                    output[b, :, h, w] += define_maps(layer.spatial_bias, h, w)
    return output
