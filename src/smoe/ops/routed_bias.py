"""The bias of the experts that serve each pixel."""

from __future__ import annotations

import torch

from smoe.ops.gather_experts import fold_channels


def routed_bias(bias: torch.Tensor, indices: torch.Tensor, expert_channels: int = 1) -> torch.Tensor:
    """Picks the bias of the selected experts; gradients reach `bias`.

    Args:
        bias: `(X * F,)`; expert `x` owns `[x * F, (x + 1) * F)`.
        indices: Selected experts `(1 or B, E, P)`.
        expert_channels: F.

    Returns:
        `(1 or B, E * F, P)`.
    """
    # Autograd keeps the index: as int32, which the layer keeps too, it takes no memory.
    channels = fold_channels(indices, expert_channels)
    return bias.index_select(0, channels.flatten()).view_as(channels)
