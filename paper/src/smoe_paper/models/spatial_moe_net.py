"""The one-layer SMoE network of the heat-diffusion experiment (paper section 3.1)."""

from __future__ import annotations

import torch
from torch import nn

from smoe.nn._routed_layer import RoutedLayer


class SpatialMoENet(nn.Module):
    """One SMoE layer whose selected experts' outputs are summed to one field.

    With one expert of one output per pixel the sum is the output itself.

    Args:
        layer: The SMoE layer.
    """

    def __init__(self, layer: RoutedLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, C, H, W)` to `(B, 1, H, W)`."""
        output = self.layer(input)
        return output if output.shape[1] == 1 else output.sum(dim=1, keepdim=True)
