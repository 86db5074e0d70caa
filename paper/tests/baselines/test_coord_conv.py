from __future__ import annotations

import torch
import torch.nn.functional as F

from smoe_paper.baselines.layers import CoordConv2d, append_coordinates


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
