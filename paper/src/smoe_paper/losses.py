"""Losses of the experiments: of fields on a globe, of corrected ensembles and of classifiers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from smoe.losses import gaussian_crps, latitude_weights


class LatitudeWeightedMSE(nn.Module):
    """The mean over samples, channels and pixels of the squared error times the weight of its row."""

    weights: torch.Tensor

    def __init__(self, latitude: Sequence[float] | np.ndarray) -> None:
        super().__init__()
        self.register_buffer("weights", latitude_weights(latitude)[:, None], persistent=False)

    def forward(self, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss of two tensors `(B, C, H, W)`, a scalar in at least float32."""
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


def ensemble_crps(members: torch.Tensor, truth: torch.Tensor, *, fair: bool = False) -> torch.Tensor:
    """CRPS of an ensemble, `mean_i |x_i - y| - sum_ij |x_i - x_j| / (2 M^2)`, at each pixel.

    This is the score of the empirical distribution of the members `(B, M, ...)`. `fair` divides by `2 M (M - 1)`
    instead, which gives the expected score of infinitely many members of which these are a sample; it may be negative.
    """
    if members.ndim < 2 or truth.shape != members.shape[:1] + members.shape[2:]:
        raise ValueError(
            f"members must be (B, M, ...) and truth (B, ...), got {tuple(members.shape)} and {tuple(truth.shape)}"
        )
    num_members = members.shape[1]
    if num_members < (2 if fair else 1):
        raise ValueError(f"the {'fair ' if fair else ''}CRPS needs {2 if fair else 1} members, got {num_members}")
    # Relative to the truth, as large numbers with small differences would cost digits.
    errors = members - truth.unsqueeze(1)
    # With the members sorted, sum_ij |x_i - x_j| = 2 sum_i (2 i - M - 1) x_i: M terms instead of M^2.
    ranked = errors.sort(dim=1).values
    factors = torch.arange(1 - num_members, num_members, 2, device=members.device, dtype=members.dtype)
    half_sum = (ranked * factors.view(-1, *(1,) * (members.ndim - 2))).sum(dim=1)
    return errors.abs().mean(dim=1) - half_sum / (num_members * (num_members - 1 if fair else num_members))


class GaussianCRPSLoss(nn.Module):
    """The mean CRPS of the corrected ensemble over samples and pixels.

    The prediction is the network's raw output; the head (`gaussian_head`) is applied here, because it needs the
    ensemble in physical units, which the network does not receive.

    Args:
        latitude: Latitudes of the rows, in degrees, to weigh them by their area; None, as in ENS-10, weighs all pixels
            equally.
    """

    weights: torch.Tensor | None

    def __init__(self, latitude: Sequence[float] | np.ndarray | None = None) -> None:
        super().__init__()
        weights = None if latitude is None else latitude_weights(latitude)[:, None]
        self.register_buffer("weights", weights, persistent=False)

    def forward(self, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        crps = corrected_crps(prediction, target)
        if self.weights is None:
            return crps.mean()
        if crps.shape[1] != len(self.weights):
            raise ValueError(f"there are {len(self.weights)} latitudes for {crps.shape[1]} rows")
        return (crps * self.weights.to(crps)).mean()


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


class CrossEntropy(nn.Module):
    """The mean cross-entropy over a batch, of classes `(B,)` or probabilities `(B, N)`."""

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        if not 0.0 <= label_smoothing < 1.0:
            raise ValueError(f"label_smoothing must be in [0, 1), got {label_smoothing}")
        self.label_smoothing = label_smoothing

    def forward(self, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        check_classes(prediction, target)
        return F.cross_entropy(prediction, target, label_smoothing=self.label_smoothing)


def check_classes(prediction: torch.Tensor, target: torch.Tensor) -> None:
    """Raises a ValueError unless these are logits `(B, N)` and integer classes `(B,)` or probabilities `(B, N)`."""
    is_index = target.ndim == 1 and not target.is_floating_point()
    is_share = target.ndim == 2 and target.is_floating_point() and target.shape == prediction.shape
    if prediction.ndim != 2 or len(target) != len(prediction) or not (is_index or is_share):
        raise ValueError(
            "prediction must be logits (B, N) and target integer classes (B,) or probabilities (B, N), got "
            f"{tuple(prediction.shape)} and {target.dtype} of {tuple(target.shape)}"
        )
