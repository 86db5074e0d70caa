from __future__ import annotations

import pytest
import torch

from smoe.ops import wrap_padding
from smoe.ops._conv_kernels import unwrap_padding

INPUT = torch.arange(12.0).reshape(1, 1, 3, 4)


def test_zeros_are_left_to_the_convolution():
    padded, zeros = wrap_padding(INPUT, (3, 5), "zeros")
    assert padded is INPUT
    assert zeros == (1, 2)


@pytest.mark.parametrize("kernel_size", [(1, 1), (3, 5), (5, 3), (9, 11)])
@pytest.mark.parametrize("padding_mode", ["circular", "longitude"])
def test_axes_that_wrap(kernel_size, padding_mode):
    padded, zeros = wrap_padding(INPUT, kernel_size, padding_mode)
    rows, columns = kernel_size[0] // 2, kernel_size[1] // 2
    assert zeros == ((0, 0) if padding_mode == "circular" else (rows, 0))
    rows = rows if padding_mode == "circular" else 0
    for i in range(-rows, 3 + rows):
        for j in range(-columns, 4 + columns):
            assert padded[0, 0, i + rows, j + columns] == INPUT[0, 0, i % 3, j % 4]


def test_unknown_mode():
    with pytest.raises(ValueError, match="zeros, circular, longitude, got 'reflect'"):
        wrap_padding(INPUT, (3, 3), "reflect")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("padding_mode", ["zeros", "circular", "longitude"])
@pytest.mark.parametrize("kernel_size", [(3, 5), (17, 7)])
@pytest.mark.parametrize("grid", [(4, 6), (2, 1)])
def test_unwrapping_is_the_derivative_of_wrapping(grid, kernel_size, padding_mode):
    values = torch.randn(2, 3, *grid, dtype=torch.float64, requires_grad=True)
    padded, _ = wrap_padding(values, kernel_size, padding_mode)
    error = torch.randn_like(padded)
    expected = error if padded is values else torch.autograd.grad(padded, values, error)[0]
    torch.testing.assert_close(unwrap_padding(error, grid, kernel_size, padding_mode), expected)
