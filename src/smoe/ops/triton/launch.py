"""Launches kernels: on the device of a tensor, with as many programs as there are blocks."""

from __future__ import annotations

import contextlib

import torch


def device_of(tensor: torch.Tensor) -> contextlib.AbstractContextManager[object]:
    """Makes the tensor's GPU the current one; on a CPU, where kernels run in Triton's interpreter, does nothing."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


def ceil_div(size: int, block: int) -> int:
    """Number of blocks that cover `size` elements."""
    return -(-size // block)


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`: what the sides of a block must be."""
    return 1 << max(size - 1, 0).bit_length()
