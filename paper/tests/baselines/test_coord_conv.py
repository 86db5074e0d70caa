from __future__ import annotations

import pytest
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


@pytest.mark.parametrize("shape", [(3, 5), (4, 4), (1, 7), (6, 1), (1, 1)])
def test_radius_is_centred_on_the_grid(shape):
    radius = append_coordinates(torch.zeros(1, 1, *shape, dtype=torch.float64), with_radius=True)[0, 3]
    torch.testing.assert_close(radius, radius.flip(0))
    torch.testing.assert_close(radius, radius.flip(1))
    if shape[0] % 2 and shape[1] % 2:
        assert radius[shape[0] // 2, shape[1] // 2] == 0
    corner = ((shape[0] > 1) + (shape[1] > 1)) ** 0.5
    assert float(radius[0, 0]) == pytest.approx(corner)


@pytest.mark.parametrize("with_radius", [False, True])
def test_is_a_convolution_of_the_appended_input(with_radius):
    layer = CoordConv2d(2, 4, (3, 5), stride=2, with_radius=with_radius)
    x = torch.randn(2, 2, 5, 6)
    expected = F.conv2d(append_coordinates(x, with_radius), layer.conv.weight, stride=2, padding=(1, 2))
    torch.testing.assert_close(layer(x), expected)
    assert layer.conv.weight.shape == (4, 5 if with_radius else 4, 3, 5)
    assert [name for name, _ in layer.named_parameters()] == ["conv.weight"]
