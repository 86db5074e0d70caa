"""Low-rank local layers, against their definition pixel by pixel."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smoe
from definitions import assert_same, draw_parameters, loop_conv2d, output_and_gradients
from smoe.ops import output_grid
from smoe_paper.baselines.low_rank import InputCombiner, LowRankLocal2d, RowsAndColumns, Table, fitting_dilations


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


def compare_with_definition(layer: LowRankLocal2d, x: torch.Tensor) -> None:
    draw_parameters(layer)
    actual = output_and_gradients(layer, layer, x)
    assert actual["output"].shape[2:] == output_grid(x.shape[2], x.shape[3], layer.stride)
    assert_same(actual, output_and_gradients(lambda x: define_low_rank_local(layer, x), layer, x))


@pytest.mark.parametrize("combiner", ["rows_and_columns", "table", "input"])
@pytest.mark.parametrize("padding_mode", ["zeros", "circular", "longitude"])
@pytest.mark.parametrize("stride", [1, 2])
def test_equals_its_definition(stride, padding_mode, combiner):
    layer = LowRankLocal2d(
        2,
        3,
        (3, 5),
        combiner=combiner,
        spatial_shape=output_grid(5, 6, stride),
        spatial_bias=True,
        stride=stride,
        padding_mode=padding_mode,
    ).double()
    compare_with_definition(layer, torch.randn(2, 2, 5, 6, dtype=torch.float64))


@pytest.mark.parametrize("grid", [(17, 19), (20, 23), (1, 2)])
def test_input_combiner_with_all_dilations_equals_its_definition(grid):
    combiner = InputCombiner(2, 2).double()
    draw_parameters(combiner)
    x = torch.randn(2, 2, 17, 19, dtype=torch.float64)
    actual = output_and_gradients(lambda x: combiner(x, grid), combiner, x)
    assert actual["output"].shape == (2, 2, *grid)
    for name, value in actual.items():
        assert value.abs().max() > 0, name
    expected = output_and_gradients(lambda x: define_input_combiner(combiner, x, grid), combiner, x)
    assert_same(actual, expected, tolerance=1e-10)


@pytest.mark.parametrize(
    ("shape", "dilations"),
    [
        ((64, 64), (1, 2, 4, 8)),
        ((17, 32), (1, 2, 4, 8)),
        ((32, 16), (1, 2, 4)),
        ((5, 9), (1, 2)),
        ((3, 3), (1,)),
        ((2, 9), ()),
    ],
)
def test_dilations_follow_the_grid(shape, dilations):
    assert fitting_dilations(shape) == dilations
    layer = LowRankLocal2d(1, 1, combiner="input", spatial_shape=shape)
    assert isinstance(layer.combiner, InputCombiner)
    assert layer.combiner.dilations == dilations
    assert layer(torch.randn(2, 1, *shape)).shape == (2, 1, *shape)
    # 2 + len(dilations) branches of K = 3 channels enter the squeeze; its 9 and the next 18 outputs stay.
    expected = 27 + 3 + 27 * len(dilations) + (2 + len(dilations)) * 3 * 9 + 9 * 18 + 18 * 3
    assert sum(parameter.numel() for parameter in layer.parameters()) == expected


def test_grid_too_small_for_a_dilation_is_refused():
    combiner = InputCombiner(1)
    assert combiner(torch.randn(1, 1, 17, 20)).shape == (1, 3, 17, 20)
    with pytest.raises(
        ValueError, match=r"dilation 8 needs a grid of at least 17 .* got \(16, 20\): .* dilations=\(1, 2, 4\)"
    ):
        combiner(torch.randn(1, 1, 16, 20))


@pytest.mark.parametrize("combiner", ["rows_and_columns", "table"])
def test_starts_as_a_convolution(combiner):
    layer = LowRankLocal2d(2, 3, spatial_rank=4, spatial_shape=(4, 5), spatial_bias=True, combiner=combiner).double()
    x = torch.randn(2, 2, 4, 5, dtype=torch.float64)
    # Four equal weights.
    torch.testing.assert_close(
        layer(x), loop_conv2d(x, 0.25 * layer.weight.unflatten(0, (layer.spatial_rank, -1)).sum(dim=0), 1, "zeros")
    )


def test_weights_of_the_combiner_start_as_in_the_authors_code():
    combiner = InputCombiner(40, 30)
    # Glorot: variance 2 / (inputs + outputs); of the 3x3 kernel of one map among 30, 9 inputs and 9 * 30 outputs.
    assert float(combiner.reduce.weight.detach().std()) == pytest.approx(math.sqrt(2 / (40 + 30)), rel=0.05)
    assert float(combiner.squeeze.weight.detach().std()) == pytest.approx(math.sqrt(2 / (180 + 90)), rel=0.05)
    scales = torch.cat([parameter.detach().flatten() for parameter in combiner.scales.parameters()])
    assert float(scales.std()) == pytest.approx(math.sqrt(2 / (9 + 9 * 30)), rel=0.05)


@pytest.mark.parametrize(("combiner", "stride"), [("rows_and_columns", 2), ("table", 1), ("input", 2)])
def test_another_grid(combiner: Any, stride: int) -> None:
    layer = LowRankLocal2d(
        3, 4, combiner=combiner, spatial_rank=2, spatial_shape=(9, 9), spatial_bias=True, stride=stride
    )
    for parameter in layer.parameters():
        parameter.data += torch.randn_like(parameter)
    x = torch.randn(1, 3, 12 * stride, 11 * stride)
    new = smoe.interpolate_grids(layer, example_input=x)
    assert new(x).shape == (1, 4, 12, 11)
    for maps in (new.combiner, new.spatial_bias):
        if isinstance(maps, (RowsAndColumns, Table)):
            assert maps().shape[1:] == (12, 11)
    if not isinstance(layer.combiner, InputCombiner):
        # Bilinear interpolation of a sum of a row and a column is that of its parts.
        expected = F.interpolate(layer.combiner()[None], (12, 11), mode="bilinear", align_corners=False)[0]
        assert not isinstance(new.combiner, InputCombiner)
        torch.testing.assert_close(new.combiner(), expected)
