"""Picks the outputs of the selected experts out of all experts' outputs."""

from __future__ import annotations

import torch

from smoe.ops._operators import has_transforms


def gather_experts(outputs: torch.Tensor, indices: torch.Tensor, expert_channels: int = 1) -> torch.Tensor:
    """Keeps, at each pixel, the outputs of the experts selected there.

    Gradients reach `outputs`. They are scattered without additions, because the experts of a pixel are distinct: the
    result is deterministic on every device.

    Args:
        outputs: Outputs of all experts `(B, X * F, *grid)`; channels `[x * F, (x + 1) * F)` belong to expert `x`.
        indices: Selected experts `(1 or B, E, P)`, integers, distinct at each pixel.
        expert_channels: F, the number of outputs per expert.

    Returns:
        `(B, E * F, *grid)`, the experts in the order of `indices`, in the memory format of `outputs`.
    """
    batch, grid = outputs.shape[0], outputs.shape[2:]
    num_pixels = grid.numel()
    if indices.ndim != 3 or indices.shape[2] != num_pixels:
        raise ValueError(
            f"the routing must be (1 or B, E, P) with P = {num_pixels}, the pixels of the experts' output grid "
            f"{tuple(grid)}, got shape {tuple(indices.shape)}; make the gate for the output grid (spatial_shape)"
        )
    if indices.shape[0] not in (1, batch):
        raise ValueError(f"the routing is for {indices.shape[0]} samples but the experts' output has {batch}")
    channels = fold_channels(indices.long(), expert_channels).expand(batch, -1, -1)
    if has_transforms() or torch._C._get_tracing_state() is not None:  # a trace could not be saved
        return outputs.flatten(2).gather(1, channels).unflatten(2, grid)
    return _Gather.apply(outputs.flatten(2), channels).unflatten(2, grid)  # type: ignore[union-attr]


def scatter_experts(
    selected: torch.Tensor, indices: torch.Tensor, num_experts: int, expert_channels: int = 1
) -> torch.Tensor:
    """The transpose of `gather_experts`: zero for the experts that are not selected."""
    channels = fold_channels(indices.long(), expert_channels).expand(selected.shape[0], -1, -1)
    return _scatter(selected.flatten(2), channels, num_experts * expert_channels).unflatten(2, selected.shape[2:])


def fold_channels(indices: torch.Tensor, expert_channels: int) -> torch.Tensor:
    """Channels of the selected experts: `(..., E, P)` to `(..., E * F, P)`, an expert's F outputs adjacent."""
    if expert_channels == 1:
        return indices
    channels = torch.arange(expert_channels, dtype=indices.dtype, device=indices.device)[:, None]
    return (indices.unsqueeze(-2) * expert_channels + channels).flatten(-3, -2)


class _Gather(torch.autograd.Function):
    # The derivative of `torch.gather` adds where indices repeat, by atomic operations on a GPU.

    @staticmethod
    def forward(values, channels):  # pyright: ignore[reportIncompatibleMethodOverride]
        if _has_channels_last(values):
            return values.transpose(1, 2).gather(2, channels.transpose(1, 2)).transpose(1, 2)
        return values.gather(1, channels)

    @staticmethod
    def setup_context(ctx, inputs, output):
        del output
        values, channels = inputs
        ctx.save_for_backward(channels)
        ctx.num_channels = values.shape[1]

    @staticmethod
    def backward(ctx, *grad_outputs):
        (channels,) = ctx.saved_tensors
        return _scatter(grad_outputs[0], channels, ctx.num_channels), None


def _scatter(values: torch.Tensor, channels: torch.Tensor, num_channels: int) -> torch.Tensor:
    """Values `(B, E * F, P)` at their channels in zeros `(B, num_channels, P)`, in the memory format of the values."""
    batch, _, num_pixels = values.shape
    if _has_channels_last(values):
        zeros = values.new_zeros(batch, num_pixels, num_channels)
        return zeros.scatter(2, channels.transpose(1, 2), values.transpose(1, 2)).transpose(1, 2)
    return values.new_zeros(batch, num_channels, num_pixels).scatter(1, channels, values)


def _has_channels_last(values: torch.Tensor) -> bool:
    """Whether `(B, C, P)` has the channels of a pixel side by side in memory, as flattened channels_last has."""
    return not values.is_contiguous() and values.transpose(1, 2).is_contiguous()


def add_routed_bias(
    output: torch.Tensor, bias: torch.Tensor, indices: torch.Tensor, expert_channels: int = 1
) -> torch.Tensor:
    """Adds the bias of the selected experts `(1 or B, E, P)` to `(B, E * F, *grid)`."""
    channels = fold_channels(indices, expert_channels)
    return output + bias.index_select(0, channels.flatten()).view(*channels.shape[:2], *output.shape[2:])
