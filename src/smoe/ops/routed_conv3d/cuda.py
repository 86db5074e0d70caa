"""The routed convolution of a volume on a GPU: the sparse kernels of the plane where they win, dense otherwise."""

from __future__ import annotations

from typing import Any

import torch

from smoe.ops.routed_conv.cuda import major_capability, why_mixed
from smoe.ops.routed_conv3d.dense import dense_routed_conv3d, dense_routed_conv3d_backward
from smoe.ops.routed_conv3d.planes import (
    has_separate_slices,
    planes_routed_conv3d,
    planes_routed_conv3d_backward,
)
from smoe.ops.routed_conv3d.slabs import PlaneConvolution, Slabs, slab_routed_conv3d, slab_routed_conv3d_backward
from smoe.ops.triton.availability import RoutedShape, why_dense, why_not_for


def cuda_routed_conv3d(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    stride: int,
    padding_mode: str,
) -> torch.Tensor:
    """The output on a GPU, by the implementation that the shape decides."""
    arguments = (input, weight, indices, expert_channels, stride, padding_mode)
    if has_separate_slices(weight, stride, padding_mode):
        return planes_routed_conv3d(input, weight, indices, expert_channels)
    if why_not_for(input, weight, indices) is not None:
        return dense_routed_conv3d(*arguments)
    if why_no_slabs(*arguments) is None:
        return slab_routed_conv3d(input, weight, indices, expert_channels, padding_mode, plane=_sparse_plane())
    from smoe.ops.triton.gather_experts import triton_gather_experts

    return dense_routed_conv3d(*arguments, gather=triton_gather_experts)


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
    arguments = (*tensors, expert_channels, stride, padding_mode, *needs)
    if has_separate_slices(weight, stride, padding_mode):
        return planes_routed_conv3d_backward(*tensors, expert_channels, *needs)
    if why_not_for(error, input, weight, indices) is not None:
        return dense_routed_conv3d_backward(*arguments)
    if error.dtype == input.dtype and why_no_slabs(*arguments[1:7]) is None:
        return slab_routed_conv3d_backward(*tensors, expert_channels, padding_mode, *needs, plane=_sparse_plane())
    from smoe.ops.triton.gather_experts import triton_scatter_experts

    return dense_routed_conv3d_backward(*arguments, scatter=triton_scatter_experts)


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
    return RoutedShape(
        batch=input.shape[0],
        channels=weight.shape[1] * weight.shape[2],
        num_experts=weight.shape[0] // expert_channels,
        num_selected=indices.shape[1],
        expert_channels=expert_channels,
        kernel=(weight.shape[3], weight.shape[4]),
        grid=(rows, columns),
        output_pixels=rows * columns,
        is_shared=indices.shape[0] == 1,
    )


def _sparse_plane() -> PlaneConvolution:
    from smoe.ops.triton.routed_conv import triton_routed_conv2d, triton_routed_conv2d_backward

    return PlaneConvolution(triton_routed_conv2d, triton_routed_conv2d_backward)
