"""The routed convolution on a GPU: sparse Triton kernels for the shapes they win at, dense otherwise.

Arguments and results are those of the operators, whose schemas are in `smoe.ops.routed_conv`.
"""

from __future__ import annotations

from typing import Any

import torch

from smoe.ops.routed_conv.dense import dense_routed_conv2d, dense_routed_conv2d_backward
from smoe.ops.triton.availability import RoutedShape, why_dense, why_not_for


def cuda_routed_conv2d(
    input: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor, expert_channels: int, *options: Any
) -> torch.Tensor:
    """The output on a GPU, by the implementation that the shape decides."""
    arguments = (input, weight, indices, expert_channels, *options)
    if why_not_for(input, weight, indices) is not None:
        return dense_routed_conv2d(*arguments)
    if why_not_sparse(input, weight, indices, expert_channels) is None:
        from smoe.ops.triton.routed_conv import triton_routed_conv2d

        return triton_routed_conv2d(*arguments)
    from smoe.ops.triton.gather_experts import triton_gather_experts

    return dense_routed_conv2d(*arguments, gather=triton_gather_experts)


def cuda_routed_conv2d_backward(
    error: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    *options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients on a GPU, by the implementation that the shape decides."""
    arguments = (error, input, weight, indices, expert_channels, *options)
    if why_not_for(error, input, weight, indices) is not None:
        return dense_routed_conv2d_backward(*arguments)
    if error.dtype == input.dtype and why_not_sparse(input, weight, indices, expert_channels) is None:
        from smoe.ops.triton.routed_conv import triton_routed_conv2d_backward

        return triton_routed_conv2d_backward(*arguments)
    from smoe.ops.triton.gather_experts import triton_scatter_experts

    return dense_routed_conv2d_backward(*arguments, scatter=triton_scatter_experts)


def why_not_sparse(
    input: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor, expert_channels: int
) -> str | None:
    """Why tensors on a GPU are computed densely, or None if the sparse kernels are chosen."""
    shape = shape_of(input, weight, indices, expert_channels)
    return why_mixed(input, weight, indices) or why_dense(shape, major_capability(input))


def shape_of(input: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor, expert_channels: int) -> RoutedShape:
    """Sizes of a routed convolution with these tensors."""
    return RoutedShape(
        batch=input.shape[0],
        channels=input.shape[1],
        num_experts=weight.shape[0] // expert_channels,
        num_selected=indices.shape[1],
        expert_channels=expert_channels,
        kernel=(weight.shape[2], weight.shape[3]),
        grid=(input.shape[2], input.shape[3]),
        output_pixels=indices.shape[2],
        is_shared=indices.shape[0] == 1,
    )


def why_mixed(input: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor) -> str | None:
    """Why the sparse kernels cannot take the dtypes of these tensors, or None."""
    if input.dtype != weight.dtype or indices.dtype != torch.int32:
        return f"input, weight and indices are {input.dtype}, {weight.dtype} and {indices.dtype}"
    return None


def major_capability(tensor: torch.Tensor) -> int:
    """Major number of the compute capability of a tensor's device."""
    return torch.cuda.get_device_capability(tensor.device)[0]
