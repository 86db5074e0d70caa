"""The SMoE operation: a convolution in which each pixel meets only its selected experts (paper section 2)."""

from __future__ import annotations

import torch

from smoe.ops.autocast import autocast
from smoe.ops.memory_format import format_of
from smoe.ops.native.library import library_for
from smoe.ops.padding import output_grid
from smoe.ops.registration import call_operator
from smoe.ops.routed_conv.choices import assert_in_range, check_choices
from smoe.ops.routed_conv.cuda import GPU_PLANES
from smoe.ops.routed_conv.dense import dense_routed_conv2d, dense_routed_conv2d_backward
from smoe.ops.routed_conv.implementation import Implementation, register_convolution
from smoe.ops.routed_conv.native import PLANES
from smoe.ops.routed_conv.reference import reference_routed_conv2d
from smoe.options import PADDING_MODES, PaddingMode

__all__ = ["dense_routed_conv2d", "reference_routed_conv2d", "routed_conv2d"]


def routed_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    *,
    expert_channels: int = 1,
    stride: int = 1,
    padding_mode: PaddingMode = "zeros",
    check_indices: bool = True,
) -> torch.Tensor:
    """Applies, at each output pixel, the filters of the experts selected there.

    Gradients reach `input` and `weight`. Padding keeps the grid at stride 1.

    Args:
        input: `(B, C, H, W)`.
        weight: Bank of experts `(X * F, C, kh, kw)` with odd `kh` and `kw`; expert `x` owns the filters
            `[x * F, (x + 1) * F)`.
        indices: Selected experts at the pixels of the output grid, `(1 or B, E, H' * W')`; int32, or int64, which is
            converted.
        expert_channels: F, the number of outputs per expert.
        stride: Stride of both axes; the output grid has `ceil(H / stride) x ceil(W / stride)` pixels.
        padding_mode: `zeros`, `circular` (both axes wrap) or `longitude` (the width wraps, zeros on the height).
        check_indices: Check on a CPU that the indices are in range and distinct at each pixel, and on a GPU that they
            are in range. Not needed for the indices of `top_experts`.

    Returns:
        `(B, E * F, H', W')`; the channels of a pixel follow the order of its `indices`.
    """
    _check(input, weight, indices, expert_channels, stride, padding_mode)
    num_experts = weight.shape[0] // expert_channels
    if check_indices and not torch.compiler.is_compiling():
        if indices.device.type == "cpu":
            check_choices(indices, num_experts, output_grid(input.shape[2], input.shape[3], stride)[1])
        elif indices.is_cuda:
            assert_in_range(indices, num_experts)
    input, weight = autocast(input, weight)
    if indices.dtype != torch.int32:
        indices = indices.to(torch.int32)
    return call_operator(_routed_conv2d, input, weight, indices, expert_channels, stride, padding_mode)


def _check(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    stride: int,
    padding_mode: str,
) -> None:
    if input.ndim != 4:
        raise ValueError(f"input must be (B, C, H, W), got shape {tuple(input.shape)}")
    if not input.is_floating_point():
        raise ValueError(f"input must be floating, got {input.dtype}; convert it with input.float()")
    if weight.ndim != 4 or weight.shape[1] != input.shape[1]:
        raise ValueError(
            f"weight must be (X * F, {input.shape[1]}, kh, kw) for an input with {input.shape[1]} channels, "
            f"got shape {tuple(weight.shape)}"
        )
    if weight.shape[2] % 2 == 0 or weight.shape[3] % 2 == 0:
        raise ValueError(f"the kernel must have odd sides to keep the grid, got {tuple(weight.shape[2:])}")
    if expert_channels < 1 or weight.shape[0] % expert_channels:
        raise ValueError(f"{weight.shape[0]} filters cannot be shared out in experts of {expert_channels} channels")
    if stride < 1:
        raise ValueError(f"stride must be at least 1, got {stride}")
    if padding_mode not in PADDING_MODES:
        raise ValueError(f"padding_mode must be one of {', '.join(PADDING_MODES)}, got {padding_mode!r}")
    if min(*input.shape[1:], weight.shape[0]) < 1:
        raise ValueError(
            f"input and weight need at least one channel, pixel and filter, got shapes {tuple(input.shape)} and "
            f"{tuple(weight.shape)}"
        )
    _refuse_mixed_devices(input, weight, indices)
    if indices.ndim != 3 or indices.shape[1] < 1 or indices.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            f"indices must be int32 or int64, (1 or B, E, P) with flat pixels, got {indices.dtype} of shape "
            f"{tuple(indices.shape)}"
        )
    if indices.shape[0] not in (1, input.shape[0]):
        raise ValueError(f"indices are for {indices.shape[0]} samples but the input has {input.shape[0]}")
    height, width = output_grid(input.shape[2], input.shape[3], stride)
    if indices.shape[2] != height * width:
        raise ValueError(
            f"the routing has {indices.shape[2]} pixels but the output grid is {(height, width)} "
            f"(input {tuple(input.shape[2:])}, stride {stride}); make the gate for the output grid (spatial_shape)"
        )


def _refuse_mixed_devices(input: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor) -> None:
    if not input.device == weight.device == indices.device:
        raise ValueError(
            f"input, weight and indices must be on one device, got {input.device}, {weight.device} and {indices.device}"
        )


def _fake(input, weight, indices, expert_channels, stride, padding_mode):
    del padding_mode
    _refuse_mixed_devices(input, weight, indices)
    grid = output_grid(input.shape[2], input.shape[3], stride)
    output = input.new_empty(input.shape[0], indices.shape[1] * expert_channels, *grid)
    return output.contiguous(memory_format=_promised_format(input, input, weight))


def _fake_backward(error, input, weight, indices, expert_channels, stride, padding_mode, needs_input, needs_weight):
    del error, expert_channels, stride, padding_mode
    _refuse_mixed_devices(input, weight, indices)
    by_input, by_weight = (
        torch.empty_like(tensor, memory_format=_promised_format(tensor, input, weight))
        if is_needed
        else tensor.new_empty(0)
        for tensor, is_needed in ((input, needs_input), (weight, needs_weight))
    )
    return by_input, by_weight


def _promised_format(like: torch.Tensor, input: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """The kernels write contiguous tensors; the dense implementation keeps the format of its arguments."""
    return format_of(like) if library_for(input, weight) is None else torch.contiguous_format


_routed_conv2d = register_convolution(
    "routed_conv2d",
    dense=Implementation(dense_routed_conv2d, dense_routed_conv2d_backward),
    native=Implementation(PLANES.forward, PLANES.backward),
    cuda=Implementation(GPU_PLANES.forward, GPU_PLANES.backward),
    fake=Implementation(_fake, _fake_backward),
)
