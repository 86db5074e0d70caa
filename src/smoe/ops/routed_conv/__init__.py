"""The SMoE operation: a convolution in which each pixel meets only its selected experts (paper section 2)."""

from __future__ import annotations

import torch

from smoe.ops.padding import output_grid
from smoe.ops.routed_conv import operator  # noqa: F401 - registers the operators
from smoe.ops.routed_conv.choices import check_choices
from smoe.ops.routed_conv.dense import dense_routed_conv2d
from smoe.ops.routed_conv.native import is_supported
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
        weight: the bank of experts `(X * F, C, kh, kw)` with odd `kh` and `kw`; expert `x` owns the filters
            `[x * F, (x + 1) * F)`.
        indices: selected experts on the output grid, `(E, H', W')` for all samples or `(B, E, H', W')`; int64, or
            int32, which takes half the memory and which the C++ kernels read as it is.
        expert_channels: F, the outputs per expert.
        stride: of both axes; the output grid has `ceil(H / stride) x ceil(W / stride)` pixels.
        padding_mode: `zeros`, `circular` (both axes wrap) or `longitude` (the width wraps, zeros on the height).
        check_indices: look whether the indices are in range and distinct at each pixel, on a CPU; off for a routing
            that is so by construction, as one of `top_experts` is.

    Returns:
        `(B, E * F, H', W')`; the channels of a pixel follow the order of its `indices`.
    """
    _check(input, weight, indices, expert_channels, stride, padding_mode)
    # Only where looking is free: on an accelerator it would stop the queue at every layer.
    if check_indices and indices.device.type == "cpu" and not torch.compiler.is_compiling():
        check_choices(indices, weight.shape[0] // expert_channels)
    input, weight = (_autocast(tensor) for tensor in (input, weight))
    if is_supported(input, weight):
        return torch.ops.smoe.routed_conv2d(input, weight, indices, expert_channels, stride, padding_mode)
    return dense_routed_conv2d(
        input, weight, indices, expert_channels=expert_channels, stride=stride, padding_mode=padding_mode
    )


def _autocast(tensor: torch.Tensor) -> torch.Tensor:
    """What autocast does to the arguments of a convolution: it knows PyTorch's operators, not ours."""
    device_type = tensor.device.type
    is_available = torch.amp.is_autocast_available(device_type)
    if tensor.dtype == torch.float64 or not is_available or not torch.is_autocast_enabled(device_type):
        return tensor
    return tensor.to(torch.get_autocast_dtype(device_type))


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
    if indices.ndim not in (3, 4) or indices.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            "indices must be int64 or int32, (E, H, W) or (B, E, H, W), "
            f"got {indices.dtype} of shape {tuple(indices.shape)}"
        )
    if indices.ndim == 4 and indices.shape[0] != input.shape[0]:
        raise ValueError(f"indices are for {indices.shape[0]} samples but the input has {input.shape[0]}")
    grid = output_grid(input.shape[2], input.shape[3], stride)
    if tuple(indices.shape[-2:]) != grid:
        raise ValueError(
            f"the routing is for a grid of {tuple(indices.shape[-2:])} but the output grid is {grid} "
            f"(input {tuple(input.shape[2:])}, stride {stride}); make the gate for the output grid (spatial_shape)"
        )
