from __future__ import annotations

import math

import pytest
import torch
from torch.func import functional_call

from definitions import assert_same, draw_parameters, loop_conv2d, output_and_gradients
from low_rank_definition import define_input_combiner, define_low_rank_local
from smoe.ops import output_grid
from smoe_paper.baselines.low_rank import InputCombiner, LowRankLocal2d, fitting_dilations


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


def test_gradcheck():
    layer = LowRankLocal2d(1, 2, 1, spatial_rank=2, combiner="input", spatial_shape=(3, 3))
    layer = layer.double()
    draw_parameters(layer)
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def call(x: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        return functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    x = torch.randn(2, 1, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(call, (x, *parameters))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # Three bases of 9, and the combiner. The SMoE paper's table of the heat experiment has 516 and 12315.
        ({"combiner": "input"}, 27 + 489),
        ({"combiner": "input", "spatial_shape": (64, 64)}, 516),
        ({"combiner": "table", "spatial_shape": (64, 64)}, 12315),
        ({"combiner": "table", "spatial_shape": (64, 64), "spatial_bias": True}, 12315 + 4096),
        ({"combiner": "rows_and_columns", "spatial_shape": (64, 32)}, 27 + 3 * (64 + 32)),
        ({"combiner": "rows_and_columns", "spatial_shape": (64, 32), "spatial_bias": True}, 27 + 4 * (64 + 32)),
        ({"combiner": "input", "spatial_shape": (64, 64), "spatial_bias": True}, 516 + 4096),
    ],
)
def test_number_of_parameters(options, expected):
    layer = LowRankLocal2d(1, 1, **options)
    assert sum(parameter.numel() for parameter in layer.parameters()) == expected


@pytest.mark.parametrize("combiner", ["rows_and_columns", "table"])
def test_starts_as_a_convolution(combiner):
    layer = LowRankLocal2d(2, 3, spatial_rank=4, spatial_shape=(4, 5), spatial_bias=True, combiner=combiner).double()
    x = torch.randn(2, 2, 4, 5, dtype=torch.float64)
    # Four equal weights.
    torch.testing.assert_close(
        layer(x), loop_conv2d(x, 0.25 * layer.weight.unflatten(0, (layer.spatial_rank, -1)).sum(dim=0), 1, "zeros")
    )


def test_each_base_starts_as_a_convolution():
    layer = LowRankLocal2d(16, 32, (3, 5), combiner="input", spatial_rank=6)
    assert layer.weight.shape == (6 * 32, 16, 3, 5)
    for kernel in layer.weight.detach().unflatten(0, (6, 32)):
        assert float(kernel.std()) == pytest.approx(math.sqrt(2 / (16 * 3 * 5)), rel=0.03)


def test_weights_of_the_combiner_start_as_in_the_authors_code():
    combiner = InputCombiner(40, 30)
    # Glorot: variance 2 / (inputs + outputs); of the 3x3 kernel of one map among 30, 9 inputs and 9 * 30 outputs.
    assert float(combiner.reduce.weight.detach().std()) == pytest.approx(math.sqrt(2 / (40 + 30)), rel=0.05)
    assert float(combiner.squeeze.weight.detach().std()) == pytest.approx(math.sqrt(2 / (180 + 90)), rel=0.05)
    scales = torch.cat([parameter.detach().flatten() for parameter in combiner.scales.parameters()])
    assert float(scales.std()) == pytest.approx(math.sqrt(2 / (9 + 9 * 30)), rel=0.05)


@pytest.mark.parametrize("combiner", ["rows_and_columns", "table", "input"])
def test_autocast_returns_the_type_it_convolves_in(combiner):
    layer = LowRankLocal2d(2, 3, combiner=combiner, spatial_shape=(5, 6), spatial_bias=True)
    x = torch.randn(2, 2, 5, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(x)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), layer(x), rtol=0.05, atol=0.05)


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


def test_channels_last_computes_the_same():
    layer = LowRankLocal2d(3, 4, spatial_rank=2, spatial_shape=(6, 5))
    x = torch.randn(2, 3, 6, 5)
    expected = layer(x)
    layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    torch.testing.assert_close(layer(x.to(memory_format=torch.channels_last)), expected)
