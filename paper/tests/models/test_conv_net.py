from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from smoe.nn import GridConv2d
from smoe_paper.models import ConvNet, FullyConnectedNet
from smoe_paper.models.nets import ResidualConv


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
    assert [type(module) for module in last.skip] == [nn.Conv2d, nn.BatchNorm2d] and not len(second.skip)
    torch.testing.assert_close(net(x), last.layers(hidden) + last.skip(hidden))


def test_every_pixel_sees_every_other() -> None:
    net = FullyConnectedNet((3, 4))
    input = torch.randn(2, 1, 3, 4)
    expected = torch.stack([net.linear.weight @ sample.flatten() for sample in input]).view(2, 1, 3, 4)
    torch.testing.assert_close(net(input), expected)
    assert sum(parameter.numel() for parameter in net.parameters()) == 144
    with pytest.raises(ValueError, match=r"inputs \(B, 1, 3, 4\), got \(2, 1, 4, 3\)"):
        net(torch.randn(2, 1, 4, 3))
