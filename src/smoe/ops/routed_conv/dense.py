"""Every expert everywhere, then a gather: the paper's own implementation (section 2.4). Any device, any dtype."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F

from smoe.ops.gather_experts import gather_experts, scatter_experts
from smoe.ops.padding import wrap_padding
from smoe.options import PaddingMode


def dense_routed_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int = 1,
    stride: int = 1,
    padding_mode: str = "zeros",
) -> torch.Tensor:
    """Arguments and result as `smoe.ops.routed_conv2d`; cost and memory follow the whole bank X, not E."""
    padded, zeros = wrap_padding(input, (weight.shape[2], weight.shape[3]), cast(PaddingMode, padding_mode))
    outputs = F.conv2d(padded, weight, stride=stride, padding=zeros)
    return gather_experts(outputs, indices, expert_channels)


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
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of input and weight; one that is not needed is empty."""
    everywhere = scatter_experts(error, indices, weight.shape[0] // expert_channels, expert_channels)
    with torch.enable_grad():
        # The derivative of the wrapped border is autograd's.
        leaf = input.detach().requires_grad_(needs_input)
        padded, zeros = wrap_padding(leaf, (weight.shape[2], weight.shape[3]), cast(PaddingMode, padding_mode))
    by_padded, by_weight, _ = torch.ops.aten.convolution_backward(
        *(everywhere, padded.detach(), weight, None, [stride, stride], list(zeros), [1, 1], False, [0, 0], 1),
        [needs_input, needs_weight, False],
    )
    if needs_input and padded is not leaf:
        (by_padded,) = torch.autograd.grad(padded, leaf, by_padded)
    return by_padded if needs_input else input.new_empty(0), by_weight if needs_weight else weight.new_empty(0)
