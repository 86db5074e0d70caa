"""The locally connected operation: a convolution in which each pixel has its own filters."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from smoe.ops.native.library import library_for
from smoe.ops.padding import output_grid, wrap_padding
from smoe.ops.registration import has_transforms
from smoe.ops.routed_conv import routed_conv2d
from smoe.options import PaddingMode


def local_conv2d(
    input: torch.Tensor, weight: torch.Tensor, *, stride: int = 1, padding_mode: PaddingMode = "zeros"
) -> torch.Tensor:
    """Applies the filters of each pixel. Gradients reach `input` and `weight`. Padding keeps the grid at stride 1.

    Args:
        input: `(B, C, H, W)`.
        weight: `(O, H', W', C, kh, kw)` for the output grid, with odd `kh` and `kw`.
        stride: Stride of both axes.
        padding_mode: `zeros`, `circular` (both axes wrap) or `longitude` (the width wraps, zeros on the height).

    Returns:
        `(B, O, H', W')`.
    """
    grid = output_grid(input.shape[2], input.shape[3], stride)
    if weight.ndim != 6 or tuple(weight.shape[1:3]) != grid or weight.shape[3] != input.shape[1]:
        raise ValueError(
            f"weight must be (O, {grid[0]}, {grid[1]}, {input.shape[1]}, kh, kw) for an input of shape "
            f"{tuple(input.shape)} at stride {stride}, got {tuple(weight.shape)}"
        )
    if library_for(input, weight) is not None and not torch.is_autocast_enabled("cpu") and not has_transforms():
        # Every filter is an expert that one pixel selects.
        filters = weight.flatten(0, 2)
        indices = torch.arange(len(filters), dtype=torch.int32).view(1, -1, grid[0] * grid[1])
        return routed_conv2d(input, filters, indices, stride=stride, padding_mode=padding_mode, check_indices=False)
    return unfolded_local_conv2d(input, weight, stride=stride, padding_mode=padding_mode)


def unfolded_local_conv2d(
    input: torch.Tensor, weight: torch.Tensor, *, stride: int = 1, padding_mode: PaddingMode = "zeros"
) -> torch.Tensor:
    """Unfolds the patches, multiplies and sums: any device, any dtype. Arguments as `local_conv2d`."""
    out_channels, height, width, _, *kernel_size = weight.shape
    padded, zeros = wrap_padding(input, (kernel_size[0], kernel_size[1]), padding_mode)
    patches = F.unfold(padded, tuple(kernel_size), padding=zeros, stride=stride)
    products = torch.einsum("bkp,opk->bop", patches, weight.flatten(1, 2).flatten(2))
    return products.view(-1, out_channels, height, width)
