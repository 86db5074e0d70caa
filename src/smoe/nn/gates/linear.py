"""A fully connected gate, as in most mixtures of experts: every score depends on the whole input."""

from __future__ import annotations

import torch
from torch import nn

from smoe.nn.gates.gate import SpatialGate
from smoe.nn.grid_checks import check_spatial_shape
from smoe.options import Normalization, Order


class LinearGate(SpatialGate):
    """Scores `(B, X, H, W)` from one linear layer without bias.

    It has `C * H_in * W_in * X * H * W` weights: 50 million on the 64 x 64 grid of the heat experiment.

    Args:
        in_channels: C, the number of channels of the layer's input.
        num_experts: X, the number of experts in the bank.
        num_selected: E, the number of experts to select at each pixel.
        spatial_shape: Rows and columns of the layer's output grid.
        input_shape: Rows and columns of its input, if they differ (stride).
        order: Order of the selected experts: `families`, `score` or `index`.
        normalization: `none`, `softmax`, `abs` or `abs_softmax`.
    """

    looks_at_input = True

    def __init__(
        self,
        in_channels: int,
        num_experts: int,
        num_selected: int,
        spatial_shape: tuple[int, int],
        *,
        input_shape: tuple[int, int] | None = None,
        order: Order = "score",
        normalization: Normalization = "none",
    ) -> None:
        super().__init__(num_experts, num_selected, order=order, normalization=normalization)
        self._spatial_shape = check_spatial_shape(spatial_shape)
        self.input_shape = check_spatial_shape(input_shape or spatial_shape)
        num_inputs = in_channels * self.input_shape[0] * self.input_shape[1]
        num_scores = num_experts * self._spatial_shape[0] * self._spatial_shape[1]
        self.linear = nn.Linear(num_inputs, num_scores, bias=False)

    @property
    def spatial_shape(self) -> tuple[int, int]:
        """Rows and columns of the grid the gate was made for."""
        return self._spatial_shape

    def raw_scores(self, input: torch.Tensor | None) -> torch.Tensor:
        """The linear layer applied to the whole input."""
        assert input is not None
        if tuple(input.shape[2:]) != self.input_shape:
            raise ValueError(
                f"the gate was made for an input grid of {self.input_shape}, got {tuple(input.shape[2:])}; "
                "a linear gate works on one grid only"
            )
        return self.linear(input.flatten(1)).unflatten(1, (self.num_experts, *self.spatial_shape))
