from __future__ import annotations

import torch
import torch.nn.functional as F

from smoe.nn import GridConv2d
from smoe_paper.models import WeatherResNet
from smoe_paper.models.weather_resnet import ConvBlock, ResidualBlock, globe_conv


def conv_by_definition(x: torch.Tensor, conv: torch.nn.Module) -> torch.Tensor:
    """Wraps the longitude, puts zeros beyond the poles, and convolves what is left."""
    assert isinstance(conv, GridConv2d)
    weight, bias = conv.weight, conv.bias
    half = weight.shape[-1] // 2
    wrapped = torch.cat([x[..., -half:], x, x[..., :half]], dim=-1)
    return F.conv2d(F.pad(wrapped, (0, 0, half, half)), weight, bias)


def block_by_definition(x: torch.Tensor, block: torch.nn.Module) -> torch.Tensor:
    assert isinstance(block, ConvBlock)
    x = conv_by_definition(x, block.conv)
    x = torch.where(x > 0, x, 0.3 * x)
    mean, variance = x.mean(dim=(0, 2, 3), keepdim=True), x.var(dim=(0, 2, 3), keepdim=True, correction=0)
    x = (x - mean) / (variance + 1e-3).sqrt()
    return x * block.norm.weight[:, None, None] + block.norm.bias[:, None, None]


def test_the_net_is_what_it_says() -> None:
    torch.manual_seed(0)
    net = WeatherResNet(5, 2, filters=4, num_blocks=2, dropout=0.0).double()
    for parameter in net.parameters():
        # Biases and norms start at 0 and 1, where much could be wrong unseen.
        parameter.data += 0.1 * torch.randn_like(parameter)
    x = torch.randn(3, 5, 6, 8, dtype=torch.float64)
    expected = block_by_definition(x, net.stem)
    for block in net.blocks:
        assert isinstance(block, ResidualBlock)
        expected = expected + block_by_definition(block_by_definition(expected, block.first), block.second)
    expected = conv_by_definition(expected, net.head)
    torch.testing.assert_close(net(x), expected)


def test_running_statistics_and_dropout_are_those_of_keras() -> None:
    torch.manual_seed(0)
    net = WeatherResNet(3, 2, filters=4, num_blocks=1)
    stem = net.stem
    assert isinstance(stem, ConvBlock)
    norm = stem.norm
    assert norm.eps == 1e-3
    assert stem.dropout.p == 0.1
    x = torch.randn(4, 3, 6, 8)
    seen = F.leaky_relu(stem.conv(x), 0.3).mean(dim=(0, 2, 3))
    net(x)
    # Keras keeps 0.99 of the mean, which starts at 0.
    assert norm.running_mean is not None
    torch.testing.assert_close(norm.running_mean, 0.01 * seen)


def test_glorot_start() -> None:
    conv = globe_conv(8, 24)
    # sqrt(6 / (9 * 8 + 9 * 24)) = 0.1443
    assert 0.14 < conv.weight.abs().max() <= 0.14434
    assert conv.bias is not None
    assert not conv.bias.any()
