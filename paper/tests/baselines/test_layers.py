"""Convolutions that the paper compares with, against their definitions."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from definitions import assert_same, draw_parameters, loop_conv2d, output_and_gradients
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
        outputs.append(loop_conv2d(sample[None], kernel, 1, "zeros"))
    return torch.cat(outputs)


@pytest.mark.parametrize("kernel_size", [1, 3])
def test_equals_its_definition(kernel_size):
    layer = CondConv2d(2, 3, kernel_size, num_experts=4).double()
    draw_parameters(layer)
    # Samples of different means, or the router would hardly tell them apart.
    x = torch.randn(3, 2, 5, 6, dtype=torch.float64) + torch.tensor([-1.0, 0.0, 1.0])[:, None, None, None]
    actual = output_and_gradients(layer, layer, x)
    assert actual.keys() == {f"{n}.grad" for n in ("input", "weight", "router.weight", "router.bias")} | {"output"}
    assert_same(actual, output_and_gradients(lambda x: define_cond_conv(layer, x), layer, x))


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


@pytest.mark.parametrize("kernel_size", [1, 3])
def test_equals_a_convolution_with_its_own_filters_at_each_pixel(kernel_size):
    layer = LocallyConnected2d(2, 3, kernel_size, spatial_shape=(5, 6)).double()
    x = torch.randn(2, 2, 5, 6, dtype=torch.float64)
    actual, padded = layer(x), F.pad(x, [kernel_size // 2] * 4)
    for h in range(5):
        for w in range(6):
            patch = padded[:, :, h : h + kernel_size, w : w + kernel_size]
            expected = torch.einsum("bcij,ocij->bo", patch, layer.weight[:, h, w])
            torch.testing.assert_close(actual[:, :, h, w], expected)


def test_filters_start_by_the_values_that_enter_an_output():
    torch.manual_seed(0)
    layers = [LocallyConnected2d(4, 8, spatial_shape=(side, side)) for side in (8, 32)]
    experts = CondConv2d(4, 128, num_experts=6).weight.detach().unflatten(0, (6, 128))
    for weight in (*(layer.weight.detach() for layer in layers), *experts):
        assert float(weight.std()) == pytest.approx(math.sqrt(2 / (4 * 3 * 3)), rel=0.04)


def test_transposed_grid_is_refused():
    layer = LocallyConnected2d(1, 2, spatial_shape=(4, 6))
    with pytest.raises(
        ValueError, match=r"output grid of \(4, 6\), .* but an input of \(6, 4\) at stride 1 has .* \(6, 4\)"
    ):
        layer(torch.randn(1, 1, 6, 4))
