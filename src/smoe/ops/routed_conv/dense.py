"""Every expert everywhere, then a gather: the paper's own implementation (section 2.4). Any device, any dtype."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from smoe.ops.gather_experts import gather_experts
from smoe.ops.padding import wrap_padding
from smoe.options import PaddingMode


def dense_routed_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    *,
    expert_channels: int = 1,
    stride: int = 1,
    padding_mode: PaddingMode = "zeros",
) -> torch.Tensor:
    """Arguments and result as `smoe.ops.routed_conv2d`; cost and memory follow the whole bank X, not E."""
    kernel_size = (weight.shape[2], weight.shape[3])
    padded, zeros = wrap_padding(input, kernel_size, padding_mode)
    return gather_experts(F.conv2d(padded, weight, stride=stride, padding=zeros), indices, expert_channels)
