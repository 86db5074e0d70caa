from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smoe
from definitions import assert_same, draw_parameters, loop_conv2d, output_and_gradients
from low_rank_definition import define_input_combiner, define_low_rank_local
from smoe.ops import output_grid
from smoe_paper.baselines.low_rank import InputCombiner, LowRankLocal2d, RowsAndColumns, Table, fitting_dilations


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
    layer = LowRankLocal2d(1, 1, combiner="input")
    assert layer(torch.randn(1, 1, 17, 20)).shape == (1, 1, 17, 20)
    with pytest.raises(
        ValueError, match=r"dilation 8 needs a grid of at least 17 .* got \(16, 20\): .* dilations=\(1, 2, 4\)"
    ):
        layer(torch.randn(1, 1, 16, 20))


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


@pytest.mark.parametrize("combiner", ["rows_and_columns", "table"])
def test_missing_grid_is_refused(combiner):
    with pytest.raises(ValueError, match=f"combiner='{combiner}' needs spatial_shape"):
        LowRankLocal2d(1, 1, combiner=combiner)


@pytest.mark.parametrize("combiner", ["rows_and_columns", "table", "input"])
def test_other_grid_is_refused(combiner):
    layer = LowRankLocal2d(1, 2, combiner=combiner, spatial_shape=(3, 4), stride=2)
    assert layer(torch.randn(1, 1, 5, 8)).shape == (1, 2, 3, 4)
    with pytest.raises(
        ValueError, match=r"output grid of \(3, 4\), .* but an input of \(8, 5\) at stride 2 has .* \(4, 3\)"
    ):
        layer(torch.randn(1, 1, 8, 5))


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
