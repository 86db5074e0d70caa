"""Convolutions with any stride, padding, dilation and groups, and transposed ones, whose filters a routing selects.

They have no kernels of their own: PyTorch convolves with all candidates, and the selected ones are kept. Cost and
memory are those of a convolution with as many filters as there are experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from smoe.ops._gather import gather_experts

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


class ConvOptions(NamedTuple):
    """What a convolution does beside its filters, for each axis."""

    stride: tuple[int, ...]
    # Pixels that are added before and after each axis; of a transposed convolution, pixels that are cut off.
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int
    padding_mode: str
    # None for a convolution that is not transposed.
    output_padding: tuple[int, ...] | None = None


def conv_sizes(sizes: Sequence[int], kernel: Sequence[int], options: ConvOptions) -> tuple[int, ...]:
    axes = zip(sizes, kernel, options.stride, options.padding, options.dilation, strict=True)
    if options.output_padding is not None:
        return tuple(
            (size - 1) * stride - before - after + step * (taps - 1) + extra + 1
            for (size, taps, stride, (before, after), step), extra in zip(axes, options.output_padding, strict=True)
        )
    return tuple(
        (size + before + after - step * (taps - 1) - 1) // stride + 1
        for size, taps, stride, (before, after), step in axes
    )


def any_conv(
    input: torch.Tensor, weight: torch.Tensor, options: ConvOptions, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Convolves `(B, C, *grid)` with `(O, C / groups, *kernel)`; a transposed one has the filters in this shape too."""
    stride, padding, dilation, groups, mode, output_padding = options
    num_axes = weight.ndim - 2
    zeros = [before for before, _ in padding]
    if output_padding is not None:
        filters = weight.transpose(0, 1)
        if groups > 1:  # (O, C / groups) to (C, O / groups), group by group
            filters = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
        return _TRANSPOSED[num_axes](input, filters, bias, stride, zeros, output_padding, groups, dilation)
    if mode != "zeros" or any(before != after for before, after in padding):
        input, zeros = _pad(input, padding, mode), [0] * num_axes
    return _CONVOLUTIONS[num_axes](input, weight, bias, stride, zeros, dilation, groups)


def _pad(input: torch.Tensor, padding: tuple[tuple[int, int], ...], mode: str) -> torch.Tensor:
    # F.pad begins with the last axis.
    sides = [side for pair in reversed(padding) for side in pair]
    if mode == "longitude":
        wrapped = F.pad(input, [*sides[:2], *(0,) * (len(sides) - 2)], mode="circular")
        return F.pad(wrapped, [0, 0, *sides[2:]])
    return F.pad(input, sides, mode="constant" if mode == "zeros" else mode)


def routed_any_conv(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    options: ConvOptions,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """Applies, at each output pixel, the filters of its experts `(1 or B, E, P)`; those of a group are adjacent."""
    return gather_experts(any_conv(input, weight, options, bias), indices, expert_channels)
