"""Every expert everywhere, then a gather: the paper's own implementation (section 2.4). Any device, any dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F

from smoe.ops.gather_experts import gather_experts, scatter_experts
from smoe.ops.memory_format import format_of
from smoe.ops.padding import output_grid, unwrap_padding, wrap_padding
from smoe.options import PaddingMode


def dense_routed_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int = 1,
    stride: int = 1,
    padding_mode: str = "zeros",
    *,
    gather: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor] = gather_experts,
) -> torch.Tensor:
    """Arguments and result as `smoe.ops.routed_conv2d`; cost and memory follow the whole bank X, not E.

    `gather` is an implementation of `gather_experts`.
    """
    if 0 in input.shape[1:]:
        # torch's convolution refuses these sizes; a sum over no channels is zero.
        grid = output_grid(input.shape[2], input.shape[3], stride)
        return input.new_zeros(input.shape[0], indices.shape[1] * expert_channels, *grid)
    padded, zeros = wrap_padding(input, (weight.shape[2], weight.shape[3]), cast(PaddingMode, padding_mode))
    outputs = F.conv2d(padded, weight, stride=stride, padding=zeros)
    return gather(outputs, indices, expert_channels).contiguous(memory_format=format_of(input))


def dense_routed_conv2d_backward(
    error: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    stride: int,
    padding_mode: str,
    needs_input: bool,
    needs_weight: bool,
    *,
    scatter: Callable[[torch.Tensor, torch.Tensor, int, int], torch.Tensor] = scatter_experts,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of input and weight, each in the memory format of its tensor; one that is not needed is empty.

    `scatter` is an implementation of `scatter_experts`.
    """
    everywhere = scatter(error, indices, weight.shape[0] // expert_channels, expert_channels)
    kernel_size, mode = (weight.shape[2], weight.shape[3]), cast(PaddingMode, padding_mode)
    padded, zeros = wrap_padding(input, kernel_size, mode)
    by_padded, by_weight, _ = torch.ops.aten.convolution_backward(
        *(everywhere, padded, weight, None, [stride, stride], list(zeros), [1, 1], False, [0, 0], 1),
        [needs_input, needs_weight, False],
    )
    if needs_input:
        by_padded = unwrap_padding(by_padded, (input.shape[2], input.shape[3]), kernel_size, mode)
    return (
        by_padded.contiguous(memory_format=format_of(input)) if needs_input else input.new_empty(0),
        by_weight.contiguous(memory_format=format_of(weight)) if needs_weight else weight.new_empty(0),
    )
