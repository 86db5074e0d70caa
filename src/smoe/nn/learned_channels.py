"""Learned fields that are appended to the input: the simplest way to tell a network where it is."""

from __future__ import annotations

import torch
from torch import nn

from smoe.nn.grid_checks import check_positive


class LearnedChannels(nn.Module):
    """Appends channels of learned numbers, one for each pixel, to its input. They start at 0.

    Args:
        num_channels: Number of channels to append.
        spatial_shape: Grid of the input.
        device: Device of the numbers.
        dtype: Dtype of the numbers.
    """

    def __init__(
        self,
        num_channels: int,
        spatial_shape: tuple[int, ...],
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(num_channels=num_channels)
        self.fields = nn.Parameter(torch.zeros(num_channels, *spatial_shape, device=device, dtype=dtype))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, C, *grid)` to `(B, C + num_channels, *grid)`."""
        if input.shape[2:] != self.fields.shape[1:]:
            made_for, got = tuple(self.fields.shape[1:]), tuple(input.shape[2:])
            raise ValueError(f"the learned channels were made for a grid of {made_for}, got {got}")
        fields = self.fields.to(input.dtype).expand(input.shape[0], *self.fields.shape)
        return torch.cat((input, fields), dim=1)

    def extra_repr(self) -> str:
        """The numbers that `repr` shows."""
        return f"{len(self.fields)}, spatial_shape={tuple(self.fields.shape[1:])}"
