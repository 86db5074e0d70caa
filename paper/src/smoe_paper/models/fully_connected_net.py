"""One fully connected layer on a grid: every pixel depends on every other (paper section 3.1)."""

from __future__ import annotations

import torch
from torch import nn

from smoe.nn._routed_layer import check_spatial_shape


class FullyConnectedNet(nn.Module):
    """One field to one field of the same grid, without bias.

    Args:
        spatial_shape: Rows and columns of the grid.
    """

    def __init__(self, spatial_shape: tuple[int, int]) -> None:
        super().__init__()
        self.spatial_shape = check_spatial_shape(spatial_shape)
        num_pixels = self.spatial_shape[0] * self.spatial_shape[1]
        self.linear = nn.Linear(num_pixels, num_pixels, bias=False)
        # The last layer of a network, so without the gain of a ReLU behind it.
        nn.init.kaiming_uniform_(self.linear.weight, nonlinearity="linear")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, 1, H, W)` to `(B, 1, H, W)`."""
        if tuple(input.shape[1:]) != (1, *self.spatial_shape):
            raise ValueError(
                f"the network was made for inputs (B, 1, {self.spatial_shape[0]}, {self.spatial_shape[1]}), "
                f"got {tuple(input.shape)}"
            )
        return self.linear(input.flatten(1)).view_as(input)
