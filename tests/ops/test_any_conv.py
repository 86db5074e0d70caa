"""Convolutions with groups, dilation and other paddings, whose filters a routing selects: beside loops."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from routed_conv_cases import loop_routed_conv
from smoe.ops._any_conv import ConvOptions, conv_sizes, routed_any_conv


def loop(input, weight, indices, expert_channels, options):
    """The definition with the options of a convolution."""
    return loop_routed_conv(
        *(input, weight, indices, expert_channels, options.stride, options.padding_mode),
        padding=options.padding,
        dilation=options.dilation,
        groups=options.groups,
    )


OPTIONS = {
    "groups": ConvOptions((1, 1), ((1, 1), (1, 1)), (1, 1), 2, "zeros"),
    "depthwise, stride": ConvOptions((2, 1), ((1, 1), (1, 1)), (1, 1), 4, "circular"),
    "dilation": ConvOptions((1, 2), ((2, 2), (1, 1)), (2, 1), 1, "zeros"),
    "valid": ConvOptions((1, 1), ((0, 0), (0, 0)), (1, 1), 1, "zeros"),
    "one side": ConvOptions((1, 1), ((0, 1), (1, 2)), (1, 1), 2, "replicate"),
    "reflect": ConvOptions((1, 1), ((1, 1), (2, 2)), (1, 2), 1, "reflect"),
    "longitude": ConvOptions((1, 1), ((1, 1), (2, 1)), (1, 1), 2, "longitude"),
}


@pytest.mark.parametrize(("name", "expert_channels"), [(name, 1 + number % 2) for number, name in enumerate(OPTIONS)])
def test_output_and_every_gradient_are_those_of_the_loop(name, expert_channels):
    options = OPTIONS[name]
    input = torch.randn(2, 4, 4, 5, dtype=torch.float64, requires_grad=True)
    # Four outputs with three candidates each; the last candidate of each is selected nowhere.
    weight = torch.randn(12 * expert_channels, 4 // options.groups, 2, 3, dtype=torch.float64, requires_grad=True)
    grid = conv_sizes((4, 5), (2, 3), options)
    indices = (torch.arange(4)[:, None] * 3 + torch.randint(0, 2, (4, grid[0] * grid[1])))[None].int()
    bias = torch.randn(len(weight), dtype=torch.float64, requires_grad=True)
    output = routed_any_conv(input, weight, indices, expert_channels, options, bias)
    offsets = bias.unflatten(0, (12, -1))[indices[0].long()].movedim(2, 1).flatten(0, 1).unflatten(1, grid)
    expected = loop(input, weight, indices, expert_channels, options) + offsets
    torch.testing.assert_close(output, expected)
    error = torch.randn_like(output)
    tensors = (input, weight, bias)
    found = torch.autograd.grad(output, tensors, error, create_graph=True)
    for actual, truth in zip(found, torch.autograd.grad(expected, tensors, error), strict=True):
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
    output = routed_any_conv(input, weight, indices, 1, options, None)
    filters = weight[chosen].unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    image = torch.zeros(2, 4, *sizes, dtype=torch.float64, requires_grad=True)
    forward = F.conv2d(image, filters, stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=groups)
    torch.testing.assert_close(output, torch.autograd.grad(forward, image, input)[0])
