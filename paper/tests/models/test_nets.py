"""Small networks of the experiments."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from smoe.nn import GridConv2d
from smoe_paper.models import (
    ConvBlock,
    ConvNet,
    Emos,
    FullyConnectedNet,
    ResidualBlock,
    ResidualConv,
    WeatherResNet,
    globe_conv,
)


def test_normalisation_and_activation_stand_between_layers_only() -> None:
    net = ConvNet(partial(GridConv2d, kernel_size=3), (2, 5, 4, 1))
    kinds = [type(layer) for layer in net.layers]
    block = [GridConv2d, nn.BatchNorm2d, nn.ReLU]
    assert kinds == [*block, *block, GridConv2d]
    assert [layer.weight.shape[:2] for layer in net.layers if isinstance(layer, GridConv2d)] == [(5, 2), (4, 5), (1, 4)]
    assert net(torch.randn(3, 2, 7, 6)).shape == (3, 1, 7, 6)


def test_residual_layers_add_their_input() -> None:
    net = ConvNet(GridConv2d, (1, 6, 6, 1), residual=True).eval()
    first, second, last = (layer for layer in net.layers if isinstance(layer, ResidualConv))
    x = torch.randn(2, 1, 5, 4)
    hidden = (first.layers(x) + first.skip(x)).relu()
    hidden = (second.layers(hidden) + hidden).relu()
    assert [type(module) for module in last.skip] == [GridConv2d, nn.BatchNorm2d] and not len(second.skip)
    torch.testing.assert_close(net(x), last.layers(hidden) + last.skip(hidden))


def test_every_pixel_sees_every_other() -> None:
    net = FullyConnectedNet((3, 4))
    input = torch.randn(2, 1, 3, 4)
    expected = torch.stack([net.linear.weight @ sample.flatten() for sample in input]).view(2, 1, 3, 4)
    torch.testing.assert_close(net(input), expected)
    assert sum(parameter.numel() for parameter in net.parameters()) == 144
    with pytest.raises(ValueError, match=r"inputs \(B, 1, 3, 4\), got \(2, 1, 4, 3\)"):
        net(torch.randn(2, 1, 4, 3))


def test_by_hand() -> None:
    # Members 240, 250 and 260 of the range 240 to 260: 0, 1/2 and 1. Their mean square from 1/2 is 1/6.
    net = Emos(3, (240.0, 260.0))
    for parameter, value in zip(net.parameters(), ([[1.0, 2.0, 3.0]], [0.5], [[2.0]], [-1.0]), strict=True):
        parameter.data = torch.tensor(value)
    output = net(torch.tensor([240.0, 250.0, 260.0])[None, :, None, None].expand(2, 3, 4, 5))
    assert output.shape == (2, 2, 4, 5)
    # 1 * 0 + 2 / 2 + 3 * 1 + 0.5 = 4.5 and 2 sqrt(1/6) - 1
    torch.testing.assert_close(output[0, 0], torch.full((4, 5), 4.5))
    torch.testing.assert_close(output[1, 1], torch.full((4, 5), 2 * (1 / 6) ** 0.5 - 1))


def test_members_without_spread_have_no_gradient_that_is_not_a_number() -> None:
    net = Emos(3)
    net(torch.ones(1, 3, 2, 2)).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in net.parameters())


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
