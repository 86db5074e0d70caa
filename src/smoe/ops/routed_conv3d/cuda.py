"""The routed convolution of a volume on a GPU: the sparse kernels of the plane where they win, dense otherwise."""

from __future__ import annotations

from typing import Any

import torch

from smoe.ops.routed_conv.cuda import (
    GpuConvolution,
    load_sparse_planes,
    major_capability,
    shape_of,
    why_mixed,
)
from smoe.ops.routed_conv.implementation import Implementation
from smoe.ops.routed_conv3d.dense import dense_routed_conv3d, dense_routed_conv3d_backward
from smoe.ops.routed_conv3d.planes import (
    has_separate_slices,
    planes_routed_conv3d,
    planes_routed_conv3d_backward,
)
from smoe.ops.routed_conv3d.slabs import Slabs, slab_routed_conv3d, slab_routed_conv3d_backward
from smoe.ops.triton.availability import RoutedShape, why_dense


def cuda_routed_conv3d(
    input: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor, expert_channels: int, *options: Any
) -> torch.Tensor:
    """The output on a GPU, by the implementation that the shape decides."""
    if has_separate_slices(weight, *options):
        return planes_routed_conv3d(input, weight, indices, expert_channels)
    return GPU_VOLUMES.forward(input, weight, indices, expert_channels, *options)


def cuda_routed_conv3d_backward(
    error: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    stride: int,
    padding_mode: str,
    *needs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients on a GPU, by the implementation that the shape decides; one that is not needed is empty."""
    tensors = (error, input, weight, indices)
    if has_separate_slices(weight, stride, padding_mode):
        return planes_routed_conv3d_backward(*tensors, expert_channels, *needs)
    return GPU_VOLUMES.backward(*tensors, expert_channels, stride, padding_mode, *needs)


def why_no_slabs(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    stride: int,
    padding_mode: str,
) -> str | None:
    """Why tensors on a GPU are computed densely, or None if slabs are computed by the sparse kernels of the plane."""
    if stride != 1 or padding_mode == "none":
        return f"slabs have stride 1 and padding, not stride {stride} and padding mode {padding_mode!r}"
    shape = slab_shape(input, weight, indices, expert_channels, padding_mode)
    return why_mixed(input, weight, indices) or why_dense(shape, major_capability(input))


def slab_shape(
    input: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor, expert_channels: int, padding_mode: str
) -> RoutedShape:
    """Sizes of the plane that the first slab becomes."""
    slabs = Slabs(input, (weight.shape[2], weight.shape[3], weight.shape[4]), padding_mode)
    begin, end = next(slabs.ranges())
    rows, columns = (end - begin) * slabs.pitch, input.shape[4]
    return shape_of(input, weight, indices, expert_channels, (rows, columns), rows * columns)


def load_sparse_slabs() -> Implementation:
    """Slabs by the sparse kernels of the plane; this imports Triton."""
    plane = load_sparse_planes()

    def forward(input, weight, indices, expert_channels, stride, padding_mode):
        del stride  # 1, or `why_no_slabs` has a reason
        return slab_routed_conv3d(input, weight, indices, expert_channels, padding_mode, plane)

    def backward(error, input, weight, indices, expert_channels, stride, padding_mode, *needs):
        del stride
        tensors = (error, input, weight, indices)
        return slab_routed_conv3d_backward(*tensors, expert_channels, padding_mode, *needs, plane=plane)

    return Implementation(forward, backward)


GPU_VOLUMES = GpuConvolution(
    why_no_slabs, load_sparse_slabs, Implementation(dense_routed_conv3d, dense_routed_conv3d_backward)
)
