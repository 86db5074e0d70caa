"""The two-layer network that a transformer applies to each token by itself."""

from __future__ import annotations

import torch
from torch import nn

from smoe.nn.grid_checks import check_positive


class FeedForward(nn.Module):
    """`(..., width)` to `(..., width)`: linear, GELU, linear, with biases.

    Weights start Glorot-uniform and biases at zero, as in the vision transformer.

    Args:
        width: Width of the tokens.
        hidden: Width between the two linear layers.
        device: Device of the weights.
        dtype: Dtype of the weights.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(width=width, hidden=hidden)
        self.widen = nn.Linear(width, hidden, device=device, dtype=dtype)
        self.narrow = nn.Linear(hidden, width, device=device, dtype=dtype)
        for linear in (self.widen, self.narrow):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Transforms each token."""
        return self.narrow(nn.functional.gelu(self.widen(tokens)))
