"""Operators on grids: padded convolutions, interpolation, local affine maps."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from smoe.nn import GridConv2d
from smoe.nn._filter_bank import local_affine
from smoe.ops import grid_conv2d, wrap_padding
from smoe.ops._conv_kernels import unwrap_padding
from smoe.ops._interpolation import interpolate_axis, interpolate_grid
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


INPUT = torch.arange(12.0).reshape(1, 1, 3, 4)


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


@pytest.mark.parametrize("padding_mode", ["zeros", "circular", "longitude"])
@pytest.mark.parametrize("kernel_size", [(3, 5), (17, 7)])
@pytest.mark.parametrize("grid", [(4, 6), (2, 1)])
def test_unwrapping_is_the_derivative_of_wrapping(grid, kernel_size, padding_mode):
    values = torch.randn(2, 3, *grid, dtype=torch.float64, requires_grad=True)
    padded, _ = wrap_padding(values, kernel_size, padding_mode)
    error = torch.randn_like(padded)
    expected = error if padded is values else torch.autograd.grad(padded, values, error)[0]
    torch.testing.assert_close(unwrap_padding(error, grid, kernel_size, padding_mode), expected)


def axis_by_definition(values: list[float], size: int, wraps: bool) -> list[float]:
    """Value at the centre of each new pixel, (i + 1/2) / size of the length, between the centres of the old ones."""
    old = len(values)

    def at(index: int) -> float:
        return values[index % old] if wraps else values[min(max(index, 0), old - 1)]

    result = []
    for i in range(size):
        place = (2 * i + 1) * old  # in units of half an old pixel, times size
        doubled = place - size  # twice the coordinate among old centres, times size
        below = doubled // (2 * size)
        share = (doubled - below * 2 * size) / (2 * size)
        result.append((1 - share) * at(below) + share * at(below + 1))
    return result


@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize(("old", "new"), [(44, 56), (7, 6), (5, 1), (1, 4), (3, 9), (4, 4)])
def test_axis_is_the_definition(old: int, new: int, wraps: bool) -> None:
    values = torch.randn(old, dtype=torch.float64)
    expected = torch.tensor(axis_by_definition(values.tolist(), new, wraps), dtype=torch.float64)
    torch.testing.assert_close(interpolate_axis(values, new, wraps=wraps), expected)


@pytest.mark.parametrize("grid", [(7, 9), (3, 12), (5, 6)])
def test_grid_is_torchs(grid: tuple[int, int]) -> None:
    field = torch.randn(2, 3, 5, 6, dtype=torch.float64)
    expected = F.interpolate(field, grid, mode="bilinear", align_corners=False)
    torch.testing.assert_close(interpolate_grid(field, grid, (False, False)), expected)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        interpolate_axis(torch.zeros(3), 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 2, 7), (2, 5, 33, 41)])
@pytest.mark.parametrize("is_strided", [False, True])
def test_outputs_and_derivatives_are_those_of_addcmul(shape, dtype, is_strided) -> None:
    torch.manual_seed(0)
    whole = torch.randn(*shape[:-1], 2 * shape[-1], dtype=dtype)
    x = (whole[..., ::2] if is_strided else whole[..., : shape[-1]].contiguous()).requires_grad_()
    scale, offset = (torch.randn(shape[1:], dtype=dtype, requires_grad=True) for _ in range(2))
    found = []
    for output in (local_affine(x, scale, offset), torch.addcmul(offset, x, scale)):
        first = torch.autograd.grad(output.pow(3).sum(), (x, scale, offset), retain_graph=True)
        graph = torch.autograd.grad(output.pow(3).sum(), (x, scale, offset), create_graph=True)
        second = torch.autograd.grad([each.square().sum() for each in graph], (x, scale, offset))
        found.append((output, *first, *graph, *second))
    for ours, truth in zip(*found, strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-4, atol=1e-4)
