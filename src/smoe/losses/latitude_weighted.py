"""The squared error of fields on a globe, where rows near the poles cover less of it (WeatherBench)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


def latitude_weights(latitude: Sequence[float] | torch.Tensor) -> torch.Tensor:
    """The cosine of each row's latitude, divided by the mean over the rows, `(H,)` in float64.

    Args:
        latitude: of the rows, in degrees.
    """
    degrees = torch.as_tensor(latitude, dtype=torch.float64)
    if degrees.ndim != 1 or degrees.numel() == 0:
        raise ValueError(f"latitude must be a list of the rows' degrees, got shape {tuple(degrees.shape)}")
    if not bool((degrees.abs() <= 90.0).all()):
        raise ValueError(f"latitudes must be in [-90, 90] degrees, got {degrees.aminmax()}")
    weights = torch.deg2rad(degrees).cos()
    return weights / weights.mean()


class LatitudeWeightedMSE(nn.Module):
    """The mean over samples, channels and pixels of the squared error times the weight of its row.

    Args:
        latitude: of the rows, in degrees.
    """

    weights: torch.Tensor

    def __init__(self, latitude: Sequence[float] | torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("weights", latitude_weights(latitude)[:, None], persistent=False)

    def forward(self, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """A scalar from two `(B, C, H, W)`, in float32 at least."""
        if prediction.shape != target.shape or prediction.ndim != 4 or prediction.shape[2] != len(self.weights):
            raise ValueError(
                f"prediction and target must be (B, C, {len(self.weights)}, W), got {tuple(prediction.shape)} and "
                f"{tuple(target.shape)}"
            )
        difference = prediction.to(torch.promote_types(prediction.dtype, torch.float32)) - target
        return (difference.square() * self.weights.to(difference)).mean()
