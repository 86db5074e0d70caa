"""Convolutions that the paper compares with, against their definitions."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from definitions import assert_same, draw_parameters, loop_conv2d, output_and_gradients
from smoe.ops import output_grid
from smoe_paper.baselines.layers import CondConv2d, CoordConv2d, LocallyConnected2d, append_coordinates


def define_cond_conv(layer: CondConv2d, input: torch.Tensor) -> torch.Tensor:
    """Sample by sample: score the experts by the sample's mean, mix their kernels, convolve."""
    outputs = []
    for sample in input:
        mean = sample.flatten(1).sum(dim=1) / (sample.shape[1] * sample.shape[2])
        experts = layer.weight.unflatten(0, (layer.num_experts, -1))
        kernel = torch.zeros_like(experts[0])
        for expert, expert_kernel in enumerate(experts):
            score = (layer.router.weight[expert] * mean).sum() + layer.router.bias[expert]
            kernel = kernel + expert_kernel / (1 + torch.exp(-score))
        outputs.append(loop_conv2d(sample[None], kernel, layer.stride, layer.padding_mode))
    return torch.cat(outputs)


@pytest.mark.parametrize("padding_mode", ["zeros", "circular", "longitude"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel_size", [1, 3, (3, 5)])
def test_equals_its_definition(kernel_size, stride, padding_mode):
    layer = CondConv2d(2, 3, kernel_size, num_experts=4, stride=stride, padding_mode=padding_mode).double()
    draw_parameters(layer)
    # Samples of different means, or the router would hardly tell them apart.
    x = torch.randn(3, 2, 5, 6, dtype=torch.float64) + torch.tensor([-1.0, 0.0, 1.0])[:, None, None, None]
    actual = output_and_gradients(layer, layer, x)
    assert actual.keys() == {f"{n}.grad" for n in ("input", "weight", "router.weight", "router.bias")} | {"output"}
    assert_same(actual, output_and_gradients(lambda x: define_cond_conv(layer, x), layer, x))


def test_each_expert_starts_as_a_convolution():
    layer = CondConv2d(16, 32, (3, 5), num_experts=6)
    assert layer.weight.shape == (6 * 32, 16, 3, 5)
    for kernel in layer.weight.detach().unflatten(0, (6, 32)):
        assert float(kernel.std()) == pytest.approx(math.sqrt(2 / (16 * 3 * 5)), rel=0.03)
    assert not torch.equal(layer.weight[0], layer.weight[1])


def test_coordinates_go_from_minus_one_to_one():
    x = torch.randn(2, 3, 3, 5)
    appended = append_coordinates(x)
    assert appended.shape == (2, 5, 3, 5)
    assert torch.equal(appended[:, :3], x)
    assert appended[1, 3, :, 2].tolist() == [-1.0, 0.0, 1.0]
    assert appended[1, 4, 1].tolist() == [-1.0, -0.5, 0.0, 0.5, 1.0]


def test_the_coordinate_of_a_single_row_is_zero():
    assert append_coordinates(torch.zeros(1, 1, 1, 3))[0, 1:].tolist() == [[[0.0, 0.0, 0.0]], [[-1.0, 0.0, 1.0]]]


def test_is_a_convolution_of_the_appended_input():
    layer = CoordConv2d(2, 4, (3, 5), stride=2)
    x = torch.randn(2, 2, 5, 6)
    expected = F.conv2d(append_coordinates(x), layer.conv.weight, stride=2, padding=(1, 2))
    torch.testing.assert_close(layer(x), expected)
    assert [name for name, _ in layer.named_parameters()] == ["conv.weight"]


@pytest.mark.parametrize("padding_mode", ["zeros", "circular", "longitude"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel_size", [1, 3, (3, 5)])
def test_equals_a_convolution_with_its_own_filters_at_each_pixel(kernel_size, stride, padding_mode):
    torch.manual_seed(0)
    grid = output_grid(5, 6, stride)
    layer = LocallyConnected2d(2, 3, kernel_size, spatial_shape=grid, stride=stride, padding_mode=padding_mode).double()
    x = torch.randn(2, 2, 5, 6, dtype=torch.float64)
    actual = layer(x)
    rows, columns = layer.kernel_size
    vertical = {"zeros": "constant", "longitude": "constant", "circular": "circular"}[padding_mode]
    horizontal = "constant" if padding_mode == "zeros" else "circular"
    padded = F.pad(x, (columns // 2, columns // 2, 0, 0), mode=horizontal)
    padded = F.pad(padded, (0, 0, rows // 2, rows // 2), mode=vertical)
    for h in range(grid[0]):
        for w in range(grid[1]):
            filters = layer.weight[:, h, w]
            patch = padded[:, :, h * stride : h * stride + rows, w * stride : w * stride + columns]
            expected = torch.einsum("bcij,ocij->bo", patch, filters)
            torch.testing.assert_close(actual[:, :, h, w], expected)


def test_fan_in_leaves_the_grid_out():
    torch.manual_seed(0)
    for grid in ((4, 4), (32, 32)):
        weight = LocallyConnected2d(4, 8, (3, 5), spatial_shape=grid).weight.detach()
        assert float(weight.std()) == pytest.approx(math.sqrt(2 / (4 * 3 * 5)), rel=0.03)


def test_transposed_grid_is_refused():
    layer = LocallyConnected2d(1, 2, spatial_shape=(4, 6))
    with pytest.raises(
        ValueError, match=r"output grid of \(4, 6\), .* but an input of \(6, 4\) at stride 1 has .* \(6, 4\)"
    ):
        layer(torch.randn(1, 1, 6, 4))
