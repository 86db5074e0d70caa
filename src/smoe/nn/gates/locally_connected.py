"""A locally connected gate: every pixel scores the experts with filters of its own."""

from __future__ import annotations

import torch

from smoe.nn.gates.gate import SpatialGate
from smoe.nn.locally_connected import LocallyConnected2d
from smoe.options import Normalization, Order, PaddingMode


class LocallyConnectedGate(SpatialGate):
    """Scores `(B, X, H, W)` from a locally connected layer without bias.

    Args:
        in_channels: C, the number of channels of the layer's input.
        num_experts: X, the number of experts in the bank.
        num_selected: E, the number of experts to select at each pixel.
        spatial_shape: Rows and columns of the layer's output grid.
        kernel_size: Odd size of the kernels.
        stride: Stride of the layer.
        padding_mode: `zeros`, `circular` or `longitude`.
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
        kernel_size: int = 3,
        *,
        stride: int = 1,
        padding_mode: PaddingMode = "zeros",
        order: Order = "score",
        normalization: Normalization = "none",
    ) -> None:
        super().__init__(num_experts, num_selected, order=order, normalization=normalization)
        self.local = LocallyConnected2d(
            in_channels, num_experts, kernel_size, spatial_shape=spatial_shape, stride=stride, padding_mode=padding_mode
        )

    @property
    def spatial_shape(self) -> tuple[int, int]:
        """Rows and columns of the grid the gate was made for."""
        return self.local.spatial_shape

    def raw_scores(self, input: torch.Tensor | None) -> torch.Tensor:
        """The locally connected layer applied to the input."""
        return self.local(input)
