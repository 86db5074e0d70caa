from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from smoe.nn import GridConv2d
from smoe.ops import grid_conv2d
from smoe.ops._conv_kernels import wrap_padding
from smoe.ops._routed_conv import _TINY


def _values(conv, x, weight, bias, error) -> dict[str, torch.Tensor]:
    x, weight, bias = (tensor.clone().requires_grad_() for tensor in (x, weight, bias))
    output = conv(x, weight, bias)
    output.backward(error)
    assert x.grad is not None and weight.grad is not None and bias.grad is not None
    return {"output": output.detach(), "input.grad": x.grad, "weight.grad": weight.grad, "bias.grad": bias.grad}


@pytest.mark.parametrize(("stride", "padding_mode"), [(1, "circular"), (2, "longitude"), (2, "zeros")])
@pytest.mark.parametrize(
    ("batch", "channels", "filters", "kernel_size"),
    [(5, 1, 8, (3, 3)), (4, 8, 1, (3, 3)), (7, 2, 3, (1, 5)), (3, 1, 1, (3, 3)), (4, 5, 4, (3, 3))],
)
def test_is_torchs_convolution_of_the_padded_input(batch, channels, filters, kernel_size, stride, padding_mode):
    torch.manual_seed(0)
    x, weight = torch.randn(batch, channels, 7, 9), torch.randn(filters, channels, *kernel_size)
    bias = torch.randn(filters)
    rows, columns = (7 + stride - 1) // stride, (9 + stride - 1) // stride
    error = torch.randn(batch, filters, rows, columns)

    def expected_conv(x, weight, bias):
        padded, zeros = wrap_padding(x, kernel_size, padding_mode)
        return F.conv2d(padded, weight, bias, stride=stride, padding=zeros)

    actual = _values(
        lambda *tensors: grid_conv2d(*tensors, stride=stride, padding_mode=padding_mode), x, weight, bias, error
    )
    expected = _values(expected_conv, x, weight, bias, error)
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=1e-5, atol=1e-4, msg=name)


def test_the_module():
    layer, x = GridConv2d(2, 3, (1, 5), stride=2, padding_mode="longitude", bias=True), torch.randn(2, 2, 5, 6)
    expected = grid_conv2d(x, layer.weight, layer.bias, stride=2, padding_mode="longitude")
    assert torch.equal(layer(x), expected) and GridConv2d(2, 3).bias is None
    with pytest.raises(ValueError, match="out_channels must be at least 1, got 0"):
        GridConv2d(1, 0)
    with pytest.raises(ValueError, match=r"kernel_size must be odd.* got 2"):
        GridConv2d(1, 1, 2)


@pytest.mark.parametrize("channels", [1, 20])
def test_follows_autocast(channels):
    x, weight = torch.randn(4, channels, 6, 6), torch.randn(2, channels, 3, 3)
    assert (weight.numel() <= _TINY) == (channels == 1)
    with torch.autocast("cpu", torch.bfloat16):
        assert grid_conv2d(x, weight).dtype == torch.bfloat16


def test_another_number_of_channels_is_refused():
    # A tiny filter in a batch goes to the native kernel, which would read beyond the input.
    with pytest.raises(RuntimeError, match="expected input"):
        grid_conv2d(torch.randn(16, 3, 9, 7), torch.randn(8, 1, 3, 3))
