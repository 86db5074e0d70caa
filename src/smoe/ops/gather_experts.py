"""Picks the chosen experts' outputs out of all experts' outputs."""

from __future__ import annotations

import torch


def gather_experts(outputs: torch.Tensor, indices: torch.Tensor, expert_channels: int = 1) -> torch.Tensor:
    """Keeps, at each pixel, the outputs of the experts chosen there.

    Args:
        outputs: all experts' outputs `(B, X * F, H, W)`; channels `[x * F, (x + 1) * F)` belong to expert `x`.
        indices: chosen experts, `(E, H, W)` for all samples or `(B, E, H, W)`; int64 or int32.
        expert_channels: F, the outputs per expert.

    Returns:
        `(B, E * F, H, W)`, the experts in the order of `indices`.
    """
    B, _, H, W = outputs.shape
    if indices.shape[-2:] != (H, W):
        raise ValueError(
            f"the routing is for a grid of {tuple(indices.shape[-2:])} but the experts' output has {(H, W)}; "
            "make the gate for the output grid (spatial_shape)"
        )
    E = indices.shape[-3]
    indices = indices.long()  # PyTorch gathers by nothing else
    if indices.ndim == 3:
        indices = indices.unsqueeze(0)
    if expert_channels == 1:
        return outputs.gather(1, indices.expand(B, E, H, W))
    by_expert = outputs.unflatten(1, (-1, expert_channels))
    return by_expert.gather(1, indices.unsqueeze(2).expand(B, E, expert_channels, H, W)).flatten(1, 2)
