"""The routed convolution on a GPU: sparse Triton kernels for the shapes they win at, dense otherwise.

Arguments and results are those of the operators, whose schemas are in `smoe.ops._routed_conv`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from smoe.ops._conv_kernels import Implementation, dense_routed_conv2d, dense_routed_conv2d_backward
from smoe.ops._gather import gather_experts, scatter_experts
from smoe.ops.triton.availability import RoutedShape, is_too_large, why_dense, why_not_for


@dataclass(frozen=True)
class GpuConvolution:
    """The routed convolution on a GPU, of planes or of volumes: sparse kernels where they win, dense otherwise.

    Attributes:
        why_not_sparse: Says why tensors and options of the operator are computed densely, or returns None.
        load_sparse: Imports the sparse implementation.
        dense: Every expert everywhere; its functions take the `gather` and the `scatter` to use.
    """

    why_not_sparse: Callable[..., str | None]
    load_sparse: Callable[[], Implementation]
    dense: Implementation

    def forward(self, input: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor, *options: Any) -> torch.Tensor:
        """The output, by the implementation that the shape decides."""
        arguments = (input, weight, indices, *options)
        has_kernels = why_not_for(input, weight, indices) is None
        if has_kernels and self.why_not_sparse(*arguments) is None:
            return self.load_sparse().forward(*arguments)
        if not has_kernels or is_too_large(everywhere_size(input, weight, indices)):
            return self.dense.forward(*arguments, gather=gather_experts)
        from smoe.ops.triton.gather_experts import triton_gather_experts

        return self.dense.forward(*arguments, gather=triton_gather_experts)

    def backward(
        self, error: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor, *options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradients, by the implementation that the shape decides; one that is not needed is empty."""
        arguments = (error, input, weight, indices, *options)
        has_kernels = why_not_for(error, input, weight, indices) is None
        # The last two options say which gradients are needed.
        if has_kernels and error.dtype == input.dtype and self.why_not_sparse(*arguments[1:-2]) is None:
            return self.load_sparse().backward(*arguments)
        if not has_kernels or is_too_large(everywhere_size(input, weight, indices)):
            return self.dense.backward(*arguments, scatter=scatter_experts)
        from smoe.ops.triton.gather_experts import triton_scatter_experts

        return self.dense.backward(*arguments, scatter=triton_scatter_experts)


def everywhere_size(input: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor) -> int:
    """Elements of the outputs of the whole bank at every pixel, which the dense way holds."""
    return input.shape[0] * weight.shape[0] * indices.shape[2]


def why_not_sparse(
    input: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor, expert_channels: int, *options: Any
) -> str | None:
    """Why planes on a GPU are computed densely, or None if the sparse kernels are chosen."""
    del options  # the choice does not depend on stride and padding
    shape = shape_of(input, weight, indices, expert_channels, (input.shape[2], input.shape[3]), indices.shape[2])
    return why_mixed(input, weight, indices) or why_dense(shape, major_capability(input))


def shape_of(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    grid: tuple[int, int],
    output_pixels: int,
) -> RoutedShape:
    """Sizes of the routed convolution of a plane; taps in depth count as channels."""
    return RoutedShape(
        batch=input.shape[0],
        channels=math.prod(weight.shape[1:-2]),
        num_experts=weight.shape[0] // expert_channels,
        num_selected=indices.shape[1],
        expert_channels=expert_channels,
        kernel=(weight.shape[-2], weight.shape[-1]),
        grid=grid,
        output_pixels=output_pixels,
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


def load_sparse_planes() -> Implementation:
    """The sparse kernels; this imports Triton."""
    from smoe.ops.triton.routed_conv import triton_routed_conv2d, triton_routed_conv2d_backward

    return Implementation(triton_routed_conv2d, triton_routed_conv2d_backward)


GPU_PLANES = GpuConvolution(
    why_not_sparse, load_sparse_planes, Implementation(dense_routed_conv2d, dense_routed_conv2d_backward)
)
