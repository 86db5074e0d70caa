from __future__ import annotations

import pytest
import torch

from smoe.nn import GridConv2d
from smoe.ops import routed_conv2d


@pytest.mark.parametrize("padding_mode", ["zeros", "circular", "longitude"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel_size", [3, (1, 5)])
def test_is_a_routed_convolution_with_every_filter_everywhere(kernel_size, stride, padding_mode):
    layer = GridConv2d(2, 3, kernel_size, stride=stride, padding_mode=padding_mode)
    x = torch.randn(2, 2, 5, 6)
    actual = layer(x)
    indices = torch.arange(3)[None, :, None].expand(1, 3, actual.shape[2] * actual.shape[3])
    expected = routed_conv2d(x, layer.weight, indices, stride=stride, padding_mode=padding_mode)
    torch.testing.assert_close(actual, expected)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="out_channels must be at least 1, got 0"):
        GridConv2d(1, 0)
    with pytest.raises(ValueError, match=r"kernel_size must be odd.* got 2"):
        GridConv2d(1, 1, 2)


@pytest.mark.parametrize("batch", [2, 5])
def test_a_bias_is_added_to_each_channel(batch):
    # Five samples of so few channels are convolved by the kernels of tiny SMoE layers.
    layer = GridConv2d(2, 3, bias=True)
    x = torch.randn(batch, 2, 5, 6)
    before = layer(x)
    assert layer.bias is not None
    layer.bias.data = torch.tensor([1.0, 2.0, 3.0])
    torch.testing.assert_close(layer(x) - before, layer.bias[:, None, None].expand(batch, 3, 5, 6))
    layer(x).sum().backward()
    torch.testing.assert_close(layer.bias.grad, torch.full((3,), batch * 30.0))
    assert GridConv2d(2, 3).bias is None
