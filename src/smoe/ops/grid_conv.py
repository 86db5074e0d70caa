"""A convolution that keeps its grid and is fast for few channels too."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from smoe.ops.native.library import library_for
from smoe.ops.padding import output_grid, wrap_padding
from smoe.ops.registration import has_transforms
from smoe.ops.routed_conv import routed_conv2d
from smoe.options import PaddingMode

# Number of weights up to which the kernels of tiny SMoE layers take at most a third of the time of `F.conv2d`, and a
# tenth for contiguous tensors (32 samples of 64 x 64, forward and backward, one thread).
_TINY = 96


def grid_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    stride: int = 1,
    padding_mode: PaddingMode = "zeros",
) -> torch.Tensor:
    """Convolves with padding that keeps the grid at stride 1. Gradients reach `input`, `weight` and `bias`.

    A tiny convolution in float32 on a CPU is computed as an SMoE layer in which every pixel selects every filter.

    Args:
        input: `(B, C, H, W)`.
        weight: `(out_channels, C, kh, kw)` with odd `kh` and `kw`.
        bias: `(out_channels,)`, added to each pixel.
        stride: Stride of both axes; the output grid has `ceil(H / stride) x ceil(W / stride)` pixels.
        padding_mode: `zeros`, `circular` (both axes wrap) or `longitude` (the width wraps, zeros on the height).
    """
    if _is_tiny(input, weight):
        num_filters = weight.shape[0]
        grid = output_grid(input.shape[2], input.shape[3], stride)
        every_filter = torch.arange(num_filters, dtype=torch.int32)[None, :, None].expand(1, -1, grid[0] * grid[1])
        output = routed_conv2d(
            input, weight, every_filter.contiguous(), stride=stride, padding_mode=padding_mode, check_indices=False
        )
        return output if bias is None else output + bias[:, None, None]
    padded, zeros = wrap_padding(input, (weight.shape[2], weight.shape[3]), padding_mode)
    return F.conv2d(padded, weight, bias, stride=stride, padding=zeros)


def _is_tiny(input: torch.Tensor, weight: torch.Tensor) -> bool:
    # For few samples the indices cost more than they save; under autocast the convolution is not in float32.
    is_batch = input.ndim == 4 and input.shape[0] >= 4
    is_eager = not torch.is_autocast_enabled("cpu") and not has_transforms()
    return weight.numel() <= _TINY and is_batch and is_eager and library_for(input, weight) is not None
