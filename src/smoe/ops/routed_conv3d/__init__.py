"""The SMoE operation in a volume: a convolution in which each voxel meets only its selected experts."""

from __future__ import annotations

import math

import torch

from smoe.ops.autocast import autocast
from smoe.ops.registration import call_operator
from smoe.ops.routed_conv.implementation import Implementation, register_convolution
from smoe.ops.routed_conv3d.cuda import cuda_routed_conv3d, cuda_routed_conv3d_backward
from smoe.ops.routed_conv3d.dense import dense_routed_conv3d, dense_routed_conv3d_backward, volume_conv3d
from smoe.ops.routed_conv3d.grid import VOLUME_PADDINGS, volume_grid
from smoe.ops.routed_conv3d.native import VOLUMES

__all__ = ["routed_conv3d", "volume_conv3d", "volume_grid"]


def routed_conv3d(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    *,
    expert_channels: int = 1,
    stride: int = 1,
    padding_mode: str = "zeros",
) -> torch.Tensor:
    """Applies, at each voxel, the filters of the experts selected there. Gradients reach `input` and `weight`.

    Args:
        input: `(B, C, D, H, W)`.
        weight: Bank of experts `(X * F, C, kd, kh, kw)` with odd sizes; expert `x` owns `[x * F, (x + 1) * F)`.
        indices: Selected experts, distinct at each voxel of the output and in range, `(1 or B, E, D' * H' * W')`, int32
            or int64.
        expert_channels: F, the number of outputs per expert.
        stride: Stride of all axes.
        padding_mode: `zeros`; `circular`, which wraps all axes; or `none`, where only voxels are computed whose filter
            lies inside the volume.

    Returns:
        `(B, E * F, D', H', W')`; the channels of a voxel follow the order of its `indices`. With stride 1 and padding
        the grid is that of the input.
    """
    if input.ndim != 5 or weight.ndim != 5 or weight.shape[1] != input.shape[1]:
        raise ValueError(
            "input must be (B, C, D, H, W) and weight (X * F, C, kd, kh, kw), got shapes "
            f"{tuple(input.shape)} and {tuple(weight.shape)}"
        )
    if any(size % 2 == 0 for size in weight.shape[2:]):
        raise ValueError(f"the kernel must have odd sides to keep the grid, got {tuple(weight.shape[2:])}")
    if padding_mode not in VOLUME_PADDINGS:
        raise ValueError(f"padding_mode must be one of {', '.join(VOLUME_PADDINGS)} in a volume, got {padding_mode!r}")
    if stride < 1:
        raise ValueError(f"stride must be at least 1, got {stride}")
    grid = volume_grid(input.shape[2:], weight.shape[2:], stride, padding_mode)
    if any(size < 1 for size in grid):
        raise ValueError(
            f"a volume of {tuple(input.shape[2:])} is smaller than the kernel {tuple(weight.shape[2:])}, and there is "
            "no padding; use padding_mode zeros or circular"
        )
    num_voxels = math.prod(grid)
    # Not len(), which would make a constant of the number of samples where a program is exported.
    if indices.ndim != 3 or indices.shape[0] not in (1, input.shape[0]) or indices.shape[2] != num_voxels:
        raise ValueError(
            f"indices must be (1 or {input.shape[0]}, E, {num_voxels}) for an output volume of {tuple(grid)}, got "
            f"shape {tuple(indices.shape)}; make the gate for the output grid (spatial_shape)"
        )
    input, weight = autocast(input, weight)
    if indices.dtype != torch.int32:
        indices = indices.to(torch.int32)
    return call_operator(_routed_conv3d, input, weight, indices, expert_channels, stride, padding_mode)


def _fake(input, weight, indices, expert_channels, stride, padding_mode):
    grid = volume_grid(input.shape[2:], weight.shape[2:], stride, padding_mode)
    return input.new_empty(input.shape[0], indices.shape[1] * expert_channels, *grid)


def _fake_backward(error, input, weight, indices, expert_channels, stride, padding_mode, needs_input, needs_weight):
    del error, indices, expert_channels, stride, padding_mode
    return (
        input.new_empty(input.shape if needs_input else (0,)),
        weight.new_empty(weight.shape if needs_weight else (0,)),
    )


_routed_conv3d = register_convolution(
    "routed_conv3d",
    dense=Implementation(dense_routed_conv3d, dense_routed_conv3d_backward),
    native=Implementation(VOLUMES.forward, VOLUMES.backward),
    cuda=Implementation(cuda_routed_conv3d, cuda_routed_conv3d_backward),
    fake=Implementation(_fake, _fake_backward),
)
