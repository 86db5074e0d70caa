"""The small image classifier of Elsayed et al. (2020), with any kind of layer (paper appendix D)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from smoe.nn import SharedBatchNorm2d
from smoe.nn._routed_layer import check_positive


class ImageClassifier(nn.Module):
    """Layers with batch normalisation and ReLU after each, the mean over all pixels, and a linear map to the classes.

    Args:
        layers: Layers from `(B, C, H, W)` to `(B, C', H', W')`, applied one after the other.
        channels: Number of output channels of each layer.
        num_classes: N, the number of classes.
    """

    def __init__(self, layers: Sequence[nn.Module], channels: Sequence[int], num_classes: int) -> None:
        super().__init__()
        check_positive(num_classes=num_classes)
        if not layers or len(layers) != len(channels):
            raise ValueError(f"channels must be one number for each layer, got {len(channels)} for {len(layers)}")
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList(SharedBatchNorm2d(number) for number in channels)
        self.head = nn.Linear(channels[-1], num_classes)
        # The last layer of a network, so without the gain of a ReLU behind it.
        nn.init.kaiming_uniform_(self.head.weight, nonlinearity="linear")
        nn.init.zeros_(self.head.bias)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, C, H, W)` to logits `(B, N)`."""
        hidden = input
        for layer, norm in zip(self.layers, self.norms, strict=True):
            hidden = nn.functional.relu(norm(layer(hidden)), inplace=True)
        return self.head(hidden.mean(dim=(2, 3)))
