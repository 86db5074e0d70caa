"""Picks the outputs of the selected experts out of all experts' outputs."""

from __future__ import annotations

import torch


def gather_experts(outputs: torch.Tensor, indices: torch.Tensor, expert_channels: int = 1) -> torch.Tensor:
    """Keeps, at each pixel, the outputs of the experts selected there.

    Args:
        outputs: Outputs of all experts `(B, X * F, *grid)`; channels `[x * F, (x + 1) * F)` belong to expert `x`.
        indices: Selected experts `(1 or B, E, P)`, integers.
        expert_channels: F, the number of outputs per expert.

    Returns:
        `(B, E * F, *grid)`, the experts in the order of `indices`.
    """
    batch, grid = outputs.shape[0], outputs.shape[2:]
    flat = outputs.flatten(2)
    if indices.shape[2] != flat.shape[2]:
        raise ValueError(
            f"the routing has {indices.shape[2]} pixels but the experts' output has {flat.shape[2]}, a grid of "
            f"{tuple(grid)}; make the gate for the output grid (spatial_shape)"
        )
    if indices.shape[0] not in (1, batch):
        raise ValueError(f"the routing is for {indices.shape[0]} samples but the experts' output has {batch}")
    chosen = flat.gather(1, fold_channels(indices, expert_channels).expand(batch, -1, -1))
    return chosen.unflatten(2, grid)


def scatter_experts(selected: torch.Tensor, indices: torch.Tensor, num_experts: int, expert_channels: int):
    """The transpose of `gather_experts`: zero for the experts that are not selected.

    A plain scatter is enough, because the experts selected at a pixel are distinct.

    Args:
        selected: `(B, E * F, *grid)`.
        indices: Selected experts `(1 or B, E, P)`, integers.
        num_experts: X.
        expert_channels: F.

    Returns:
        `(B, X * F, *grid)`.
    """
    flat = selected.flatten(2)
    batch, _, num_pixels = flat.shape
    everywhere = flat.new_zeros(batch, num_experts * expert_channels, num_pixels)
    folded = fold_channels(indices, expert_channels).expand(batch, -1, -1)
    return everywhere.scatter_(1, folded, flat).unflatten(2, selected.shape[2:])


def fold_channels(indices: torch.Tensor, expert_channels: int) -> torch.Tensor:
    """Channels of the selected experts: `(..., E, P)` to int64 `(..., E * F, P)`, an expert's F outputs adjacent."""
    indices = indices.long()  # PyTorch gathers by nothing else
    if expert_channels == 1:
        return indices
    channels = torch.arange(expert_channels, device=indices.device)[:, None]
    return (indices.unsqueeze(-2) * expert_channels + channels).flatten(-3, -2)
