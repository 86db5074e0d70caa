"""Losses of the experiments: of fields on a globe, and of corrected ensembles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from smoe.losses import gaussian_crps, latitude_weights


class LatitudeWeightedMSE(nn.Module):
    """The mean over samples, channels and pixels of the squared error times the weight of its row."""

    weights: torch.Tensor

    def __init__(self, latitude: Sequence[float] | np.ndarray) -> None:
        super().__init__()
        self.register_buffer("weights", latitude_weights(latitude)[:, None], persistent=False)

    def forward(self, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if prediction.shape != target.shape or prediction.ndim != 4 or prediction.shape[2] != len(self.weights):
            raise ValueError(
                f"prediction and target must be (B, C, {len(self.weights)}, W), got {tuple(prediction.shape)} and "
                f"{tuple(target.shape)}"
            )
        difference = prediction.to(torch.promote_types(prediction.dtype, torch.float32)) - target
        return (difference.square() * self.weights.to(difference)).mean()


def gaussian_correction(output: torch.Tensor, spread: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The change `o0 * s` of the ensemble's mean and the new spread `exp(o1) * s`, for outputs `(B, 2, H, W)`.

    Both are `(B, H, W)`, in float32 at least. Where the ensemble has no spread s, both are 0.
    """
    if output.ndim != 4 or output.shape[1] != 2 or spread.shape != (output.shape[0], *output.shape[2:]):
        raise ValueError(
            f"output must be (B, 2, H, W) and spread (B, H, W), got {tuple(output.shape)} and {tuple(spread.shape)}"
        )
    output = output.to(torch.promote_types(output.dtype, torch.float32))
    return output[:, 0] * spread, output[:, 1].exp() * spread


def gaussian_head(output: torch.Tensor, mean: torch.Tensor, spread: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of the corrected forecast `N(o0 * s + m, (exp(o1) * s)^2)`, `(B, H, W)` each.

    An output of zeros gives the ensemble's own mean m and spread s.
    """
    shift, std = gaussian_correction(output, spread)
    if mean.shape != shift.shape:
        raise ValueError(f"mean must be (B, H, W) as spread, got {tuple(mean.shape)} and {tuple(spread.shape)}")
    return mean + shift, std


def gaussian_crps_loss(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The mean CRPS of the corrected ensemble over samples and pixels.

    The head (`gaussian_head`) is applied here: it needs the ensemble in physical units, which no network receives.
    """
    return corrected_crps(prediction, target).mean()


def corrected_crps(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """CRPS of the corrected ensemble at each pixel, `(B, H, W)`, for the network's output `(B, 2, H, W)`.

    The target `(B, 3 or more, H, W)` is truth, mean and spread of the ensemble, in physical units.
    """
    if target.ndim != 4 or target.shape[1] < 3:
        raise ValueError(
            f"target must be (B, 3, H, W): truth, mean and spread of the ensemble, got the shape {tuple(target.shape)}"
        )
    truth, mean, spread = target[:, 0], target[:, 1], target[:, 2]
    shift, std = gaussian_correction(prediction, spread)
    # Relative to the ensemble's mean: next to a geopotential of 50,000 the correction would keep four digits only.
    return gaussian_crps(shift, std, truth - mean)
