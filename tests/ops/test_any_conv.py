"""Convolutions with groups, dilation and other paddings, whose filters a routing selects: beside loops."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

from smoe.ops._any_conv import ConvOptions, conv_sizes, routed_any_conv

OPTIONS = {
    "groups": ConvOptions((1, 1), ((1, 1), (1, 1)), (1, 1), 2, "zeros"),
    "depthwise, stride": ConvOptions((2, 1), ((1, 1), (1, 1)), (1, 1), 4, "circular"),
    "dilation": ConvOptions((1, 2), ((2, 2), (1, 1)), (2, 1), 1, "zeros"),
    "valid": ConvOptions((1, 1), ((0, 0), (0, 0)), (1, 1), 1, "zeros"),
    "one side": ConvOptions((1, 1), ((0, 1), (1, 2)), (1, 1), 2, "replicate"),
    "reflect": ConvOptions((1, 1), ((1, 1), (2, 2)), (1, 2), 1, "reflect"),
    "longitude": ConvOptions((1, 1), ((1, 1), (2, 1)), (1, 1), 2, "longitude"),
}


def source(place: int, size: int, mode: str, *, is_last: bool) -> int | None:
    """The pixel of an axis that a place shows; None for zero."""
    if 0 <= place < size:
        return place
    if mode == "circular" or (mode == "longitude" and is_last):
        return place % size
    if mode == "replicate":
        return min(max(place, 0), size - 1)
    if mode == "reflect":
        return -place if place < 0 else 2 * (size - 1) - place
    return None


def loop(input, weight, indices, expert_channels, options):
    """Samples, pixels, slots and taps, one after the other."""
    sizes, kernel = input.shape[2:], weight.shape[2:]
    grid = conv_sizes(sizes, kernel, options)
    per_group, num_slots = weight.shape[1], indices.shape[1]
    outputs = []
    for sample, (row, column), slot in itertools.product(
        range(len(input)), itertools.product(*map(range, grid)), range(num_slots)
    ):
        expert = int(indices[0, slot, row * grid[1] + column])
        group = slot * options.groups // num_slots
        total = torch.zeros(expert_channels, dtype=input.dtype)
        for i, j in itertools.product(*map(range, kernel)):
            places = [
                source(at * stride + tap * step - before, size, options.padding_mode, is_last=is_last)
                for at, stride, tap, step, (before, _), size, is_last in zip(
                    *((row, column), options.stride, (i, j), options.dilation, options.padding, sizes, (False, True)),
                    strict=True,
                )
            ]
            if None in places:
                continue
            pixel = input[sample, group * per_group : (group + 1) * per_group, places[0], places[1]]
            total = total + weight[expert * expert_channels : (expert + 1) * expert_channels, :, i, j] @ pixel
        outputs.append(total)
    stacked = torch.stack(outputs).view(len(input), *grid, num_slots * expert_channels)
    return stacked.movedim(-1, 1)


@pytest.mark.parametrize(("name", "expert_channels"), [(name, 1 + number % 2) for number, name in enumerate(OPTIONS)])
def test_output_and_every_gradient_are_those_of_the_loop(name, expert_channels):
    options = OPTIONS[name]
    input = torch.randn(2, 4, 4, 5, dtype=torch.float64, requires_grad=True)
    # Four outputs with three candidates each; the last candidate of each is selected nowhere.
    weight = torch.randn(12 * expert_channels, 4 // options.groups, 2, 3, dtype=torch.float64, requires_grad=True)
    grid = conv_sizes((4, 5), (2, 3), options)
    indices = (torch.arange(4)[:, None] * 3 + torch.randint(0, 2, (4, grid[0] * grid[1])))[None].int()
    output = routed_any_conv(input, weight, indices, expert_channels, options)
    expected = loop(input, weight, indices, expert_channels, options)
    torch.testing.assert_close(output, expected)
    error = torch.randn_like(output)
    found = torch.autograd.grad(output, (input, weight), error, create_graph=True)
    for actual, truth in zip(found, torch.autograd.grad(expected, (input, weight), error), strict=True):
        torch.testing.assert_close(actual, truth)
    assert found[1].unflatten(0, (12, -1))[2::3].abs().max() == 0
    # The second derivative, by weight, of the gradient of the input.
    second = torch.autograd.grad(found[0].square().sum(), weight)[0]
    again = loop(input, weight, indices, expert_channels, options)
    loop_gradient = torch.autograd.grad(again, input, error, create_graph=True)[0]
    torch.testing.assert_close(second, torch.autograd.grad(loop_gradient.square().sum(), weight)[0])


@pytest.mark.parametrize("groups", [1, 2])
def test_a_transposed_convolution_is_the_transpose(groups):
    """Where all pixels choose alike, it is the gradient of a convolution with these filters by its input."""
    options = ConvOptions((2, 1), ((1, 1), (0, 0)), (1, 2), groups, "zeros", (1, 0))
    input = torch.randn(2, 4, 3, 4, dtype=torch.float64)
    weight = torch.randn(8, 4 // groups, 3, 2, dtype=torch.float64)
    sizes = conv_sizes((3, 4), (3, 2), options)
    chosen = torch.tensor([0, 3, 4, 7])
    indices = chosen[None, :, None].expand(1, -1, sizes[0] * sizes[1]).int()
    output = routed_any_conv(input, weight, indices, 1, options)
    filters = weight[chosen].unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    image = torch.zeros(2, 4, *sizes, dtype=torch.float64, requires_grad=True)
    forward = F.conv2d(image, filters, stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=groups)
    torch.testing.assert_close(output, torch.autograd.grad(forward, image, input)[0])
