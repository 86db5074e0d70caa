from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from smoe.ops import output_grid
from smoe_paper.baselines.layers import LocallyConnected2d


@pytest.mark.parametrize("padding_mode", ["zeros", "circular", "longitude"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel_size", [1, 3, (3, 5)])
def test_equals_a_convolution_with_its_own_filters_at_each_pixel(kernel_size, stride, padding_mode):
    torch.manual_seed(0)
    grid = output_grid(5, 6, stride)
    layer = LocallyConnected2d(2, 3, kernel_size, spatial_shape=grid, stride=stride, padding_mode=padding_mode).double()
    x = torch.randn(2, 2, 5, 6, dtype=torch.float64)
    actual = layer(x)
    rows, columns = layer.kernel_size
    vertical = {"zeros": "constant", "longitude": "constant", "circular": "circular"}[padding_mode]
    horizontal = "constant" if padding_mode == "zeros" else "circular"
    padded = F.pad(x, (columns // 2, columns // 2, 0, 0), mode=horizontal)
    padded = F.pad(padded, (0, 0, rows // 2, rows // 2), mode=vertical)
    for h in range(grid[0]):
        for w in range(grid[1]):
            filters = layer.weight[:, h, w]
            patch = padded[:, :, h * stride : h * stride + rows, w * stride : w * stride + columns]
            expected = torch.einsum("bcij,ocij->bo", patch, filters)
            torch.testing.assert_close(actual[:, :, h, w], expected)


def test_fan_in_leaves_the_grid_out():
    torch.manual_seed(0)
    for grid in ((4, 4), (32, 32)):
        weight = LocallyConnected2d(4, 8, (3, 5), spatial_shape=grid).weight.detach()
        assert float(weight.std()) == pytest.approx(math.sqrt(2 / (4 * 3 * 5)), rel=0.03)


def test_transposed_grid_is_refused():
    layer = LocallyConnected2d(1, 2, spatial_shape=(4, 6))
    with pytest.raises(
        ValueError, match=r"output grid of \(4, 6\), .* but an input of \(6, 4\) at stride 1 has .* \(6, 4\)"
    ):
        layer(torch.randn(1, 1, 6, 4))
