"""The squared error of fields on a globe, weighted by the area of the rows (WeatherBench)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn


def latitude_weights(latitude: Sequence[float] | np.ndarray) -> torch.Tensor:
    """Weights `cos(lat) / mean(cos(lat))` of the rows.

    Args:
        latitude: Latitude of each row, in degrees, `(H,)`.

    Returns:
        Weights `(H,)` with mean 1, float64.
    """
    degrees = np.asarray(latitude, dtype=np.float64)
    if degrees.ndim != 1 or len(degrees) == 0:
        raise ValueError(f"latitude must hold one number for each row, got the shape {degrees.shape}")
    is_inside = np.abs(degrees) <= 90.0
    if not is_inside.all():
        raise ValueError(f"latitude must be in degrees from -90 to 90, got {degrees[~is_inside][0]:g}")
    cosine = torch.cos(torch.deg2rad(torch.as_tensor(degrees)))
    return cosine / cosine.mean()


class LatitudeWeightedMSE(nn.Module):
    """The mean over samples, channels and pixels of the squared error times the weight of its row.

    Args:
        latitude: Latitudes of the rows, in degrees.
    """

    weights: torch.Tensor

    def __init__(self, latitude: Sequence[float] | np.ndarray) -> None:
        super().__init__()
        self.register_buffer("weights", latitude_weights(latitude)[:, None], persistent=False)

    def forward(self, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Returns the loss of two tensors `(B, C, H, W)`, a scalar in at least float32."""
        if prediction.shape != target.shape or prediction.ndim != 4 or prediction.shape[2] != len(self.weights):
            raise ValueError(
                f"prediction and target must be (B, C, {len(self.weights)}, W), got {tuple(prediction.shape)} and "
                f"{tuple(target.shape)}"
            )
        difference = prediction.to(torch.promote_types(prediction.dtype, torch.float32)) - target
        return (difference.square() * self.weights.to(difference)).mean()
