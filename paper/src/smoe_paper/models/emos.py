"""EMOS, ensemble model output statistics (Gneiting et al. 2005), as ENS-10 has it: a baseline of paper section 3.3."""

from __future__ import annotations

import torch
from torch import nn

from smoe.nn._routed_layer import check_input, check_positive


class Emos(nn.Module):
    """Two linear regressions for the whole globe: one of the members, one of their spread.

    With the members scaled to about [0, 1], `o0 = sum_i a_i x_i + b` and `o1 = c std(x) + d`, where the standard
    deviation divides by M; `gaussian_head` makes a forecast of them. M + 3 parameters, which start as those of
    `torch.nn.Linear`.

    Args:
        num_members: M, the number of members of the ensemble.
        value_range: Physical values that become 0 and 1.
    """

    def __init__(self, num_members: int, value_range: tuple[float, float] = (0.0, 1.0)) -> None:
        super().__init__()
        check_positive(num_members=num_members)
        self.low, self.high = value_range
        # `not <` refuses NaN too.
        if not self.low < self.high:
            raise ValueError(f"value_range must be a smaller and a larger value, got {self.low} and {self.high}")
        self.num_members = num_members
        self.mean = nn.Linear(num_members, 1)
        self.spread = nn.Linear(1, 1)

    def forward(self, members: torch.Tensor) -> torch.Tensor:
        """`(B, M, H, W)` in physical units to `(B, 2, H, W)`."""
        check_input(members, self.num_members)
        scaled = ((members - self.low) / (self.high - self.low)).movedim(1, -1)
        spread = scaled.std(dim=-1, correction=0, keepdim=True)
        return torch.cat([self.mean(scaled), self.spread(spread)], dim=-1).movedim(-1, 1)

    def extra_repr(self) -> str:
        """The numbers that `repr` shows."""
        return f"num_members={self.num_members}, value_range={(self.low, self.high)}"
