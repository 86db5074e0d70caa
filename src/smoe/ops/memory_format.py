"""The order of channels and pixels in memory."""

from __future__ import annotations

import torch

from smoe.ops.registration import has_transforms


def format_of(tensor: torch.Tensor) -> torch.memory_format:
    """The memory format of the result that belongs to `(B, C, H, W)`: channels_last if the tensor has it."""
    if has_transforms():  # vmap knows no formats
        return torch.contiguous_format
    is_last = tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()
    return torch.channels_last if is_last else torch.contiguous_format
