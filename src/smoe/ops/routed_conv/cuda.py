"""The routed convolution on a GPU: sparse Triton kernels for the shapes they win at, dense otherwise."""

from __future__ import annotations

import torch

from smoe.ops.routed_conv.dense import dense_routed_conv2d, dense_routed_conv2d_backward
from smoe.ops.triton.availability import RoutedShape, why_dense, why_not_for


def cuda_routed_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    stride: int,
    padding_mode: str,
) -> torch.Tensor:
    """The output on a GPU, by the implementation that the shape decides."""
    arguments = (input, weight, indices, expert_channels, stride, padding_mode)
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
    stride: int,
    padding_mode: str,
    needs_input: bool,
    needs_weight: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients on a GPU, by the implementation that the shape decides; one that is not needed is empty."""
    arguments = (error, input, weight, indices, expert_channels, stride, padding_mode, needs_input, needs_weight)
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
    if input.dtype != weight.dtype or indices.dtype != torch.int32:
        return f"input, weight and indices are {input.dtype}, {weight.dtype} and {indices.dtype}"
    major, _ = torch.cuda.get_device_capability(input.device)
    shape = RoutedShape(
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
    return why_dense(shape, major)
