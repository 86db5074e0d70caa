"""The SMoE operation in a volume: a convolution in which each voxel meets only its selected experts."""

from __future__ import annotations

import torch

from smoe.ops.registration import register_operator
from smoe.ops.routed_conv3d.cuda import cuda_routed_conv3d, cuda_routed_conv3d_backward
from smoe.ops.routed_conv3d.dense import dense_routed_conv3d, dense_routed_conv3d_backward, volume_conv3d
from smoe.ops.routed_conv3d.native import native_routed_conv3d, native_routed_conv3d_backward

__all__ = ["VOLUME_PADDINGS", "routed_conv3d", "volume_conv3d"]

VOLUME_PADDINGS = ("zeros", "circular")


def routed_conv3d(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    *,
    expert_channels: int = 1,
    padding_mode: str = "zeros",
) -> torch.Tensor:
    """Applies, at each voxel, the filters of the experts selected there. Gradients reach `input` and `weight`, once.

    Args:
        input: `(B, C, D, H, W)`.
        weight: Bank of experts `(X * F, C, kd, kh, kw)` with odd sizes; expert `x` owns `[x * F, (x + 1) * F)`.
        indices: Selected experts, distinct at each voxel and in range, `(1 or B, E, D * H * W)`, int32 or int64.
        expert_channels: F, the number of outputs per expert.
        padding_mode: `zeros`, or `circular`, which wraps all axes.

    Returns:
        `(B, E * F, D, H, W)`; the channels of a voxel follow the order of its `indices`.
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
    grid = input.shape[2:]
    if indices.ndim != 3 or indices.shape[0] not in (1, len(input)) or indices.shape[2] != grid.numel():
        raise ValueError(
            f"indices must be (1 or {len(input)}, E, {grid.numel()}) for a volume of {tuple(grid)}, got shape "
            f"{tuple(indices.shape)}; make the gate for the output grid (spatial_shape)"
        )
    device_type = input.device.type
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        dtype = torch.get_autocast_dtype(device_type)
        input, weight = (part if part.dtype == torch.float64 else part.to(dtype) for part in (input, weight))
    return torch.ops.smoe.routed_conv3d(input, weight, indices.to(torch.int32), expert_channels, padding_mode)


def _fake(input, weight, indices, expert_channels, padding_mode):
    del weight, padding_mode
    return input.new_empty(input.shape[0], indices.shape[1] * expert_channels, *input.shape[2:])


def _fake_backward(error, input, weight, indices, expert_channels, padding_mode, needs_input, needs_weight):
    del error, indices, expert_channels, padding_mode
    return (
        input.new_empty(input.shape if needs_input else (0,)),
        weight.new_empty(weight.shape if needs_weight else (0,)),
    )


def _setup_context(ctx, inputs, output):
    del output
    input, weight, indices, ctx.expert_channels, ctx.padding_mode = inputs
    ctx.save_for_backward(input, weight, indices)


def _gradients(ctx, error):
    input, weight, indices = ctx.saved_tensors
    needs_input, needs_weight = ctx.needs_input_grad[:2]
    input_gradient, weight_gradient = torch.ops.smoe.routed_conv3d_backward(
        error, input, weight, indices, ctx.expert_channels, ctx.padding_mode, needs_input, needs_weight
    )
    return input_gradient if needs_input else None, weight_gradient if needs_weight else None, None, None, None


register_operator(
    "routed_conv3d_backward(Tensor error, Tensor input, Tensor weight, Tensor indices, int expert_channels, "
    "str padding_mode, bool needs_input, bool needs_weight) -> (Tensor, Tensor)",
    dense=dense_routed_conv3d_backward,
    native=native_routed_conv3d_backward,
    cuda=cuda_routed_conv3d_backward,
    fake=_fake_backward,
)
register_operator(
    "routed_conv3d(Tensor input, Tensor weight, Tensor indices, int expert_channels, str padding_mode) -> Tensor",
    dense=dense_routed_conv3d,
    native=native_routed_conv3d,
    cuda=cuda_routed_conv3d,
    fake=_fake,
    gradients=_gradients,
    setup_context=_setup_context,
)
