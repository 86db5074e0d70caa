from __future__ import annotations

import copy
import math

import pytest
import torch
from torch.func import functional_call

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


def test_one_sample_one_channel_one_expert():
    layer = CondConv2d(1, 1, num_experts=1).double()
    x = torch.randn(1, 1, 3, 7, dtype=torch.float64)
    expected = output_and_gradients(lambda x: define_cond_conv(layer, x), layer, x)
    assert_same(output_and_gradients(layer, layer, x), expected)


def test_a_sample_keeps_its_output_in_another_batch():
    layer = CondConv2d(2, 3)
    x = torch.randn(4, 2, 6, 5)
    torch.testing.assert_close(layer(x)[2:3], layer(x[2:3]))


def test_gradcheck():
    layer = CondConv2d(2, 1, (1, 3), num_experts=2).double()
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def call(x: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        return functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    x = torch.randn(2, 2, 2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(call, (x, *parameters))


@pytest.mark.parametrize(("in_channels", "out_channels"), [(1, 1), (1, 12), (12, 1), (5, 7)])
def test_number_of_parameters(in_channels, out_channels):
    layer = CondConv2d(in_channels, out_channels)
    expected = 27 * in_channels * out_channels + 3 * in_channels + 3
    assert sum(parameter.numel() for parameter in layer.parameters()) == expected


def test_each_expert_starts_as_a_convolution():
    layer = CondConv2d(16, 32, (3, 5), num_experts=6)
    assert layer.weight.shape == (6 * 32, 16, 3, 5)
    for kernel in layer.weight.detach().unflatten(0, (6, 32)):
        assert float(kernel.std()) == pytest.approx(math.sqrt(2 / (16 * 3 * 5)), rel=0.03)
    assert not torch.equal(layer.weight[0], layer.weight[1])


def test_copies_and_stored_weights():
    layer = CondConv2d(2, 3)
    x = torch.randn(2, 2, 4, 5)
    before = layer(x)
    twin = copy.deepcopy(layer)
    other = CondConv2d(2, 3)
    assert not torch.equal(other(x), before)
    other.load_state_dict(layer.state_dict())
    draw_parameters(layer)
    assert not torch.equal(layer(x), before)
    assert torch.equal(twin(x), before)
    assert torch.equal(other(x), before)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiled_for_any_batch():
    torch._dynamo.reset()
    layer = CondConv2d(2, 3, stride=2, padding_mode="longitude").double()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for batch in (3, 2, 5):
        x = torch.randn(batch, 2, 5, 6, dtype=torch.float64)
        assert_same(output_and_gradients(compiled, layer, x), output_and_gradients(layer, layer, x))
    torch._dynamo.reset()


def test_autocast_returns_the_type_it_convolves_in():
    layer = CondConv2d(2, 3)
    x = torch.randn(2, 2, 4, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(x)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), layer(x), rtol=0.05, atol=0.05)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="num_experts must be at least 1, got 0"):
        CondConv2d(1, 1, num_experts=0)
    with pytest.raises(ValueError, match="stride must be at least 1, got 0"):
        CondConv2d(1, 1, stride=0)
    with pytest.raises(ValueError, match=r"kernel_size must be odd.* got 4"):
        CondConv2d(1, 1, 4)
    with pytest.raises(ValueError, match="padding_mode must be one of zeros, circular, longitude, got 'reflect'"):
        CondConv2d(1, 1, padding_mode="reflect")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 4, 5), (1, 2, 2, 4, 5)])
def test_wrong_input(shape):
    layer = CondConv2d(2, 3)
    with pytest.raises(ValueError, match=r"input must be \(B, 2, H, W\), got shape \(" + ", ".join(map(str, shape))):
        layer(torch.randn(shape))


def test_empty_batch_is_refused():
    with pytest.raises(ValueError, match=r"batch must not be empty, got \(0, 2, 4, 5\)"):
        CondConv2d(2, 3)(torch.randn(0, 2, 4, 5))


def test_channels_last_computes_the_same():
    layer = CondConv2d(3, 4)
    x = torch.randn(2, 3, 6, 5)
    expected = layer(x)
    layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    torch.testing.assert_close(layer(x.to(memory_format=torch.channels_last)), expected)
