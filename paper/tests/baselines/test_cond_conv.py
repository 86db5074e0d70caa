from __future__ import annotations

import math

import pytest
import torch

from definitions import assert_same, draw_parameters, loop_conv2d, output_and_gradients
from smoe_paper.baselines.layers import CondConv2d


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
