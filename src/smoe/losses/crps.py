"""The continuous ranked probability score of a normal distribution and of an ensemble (paper section 3.3).

The score is the integral over all thresholds of the squared difference between the forecast's distribution function and
the step at the truth. It has the units of the data and equals the absolute error for a forecast without spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from smoe.losses.latitude_weighted import latitude_weights
from smoe.nn._baselines import gaussian_correction

_SQRT_2 = math.sqrt(2.0)
_TWO_DENSITIES = 2.0 / math.sqrt(2.0 * math.pi)
_INVERSE_SQRT_PI = 1.0 / math.sqrt(math.pi)


def gaussian_crps(mean: torch.Tensor, std: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """CRPS of the normal distribution in closed form, at each element.

        CRPS = std * (z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi)),  z = (truth - mean) / std

    Without spread it is `|truth - mean|`, the limit. The derivatives are written out, `1 - 2 Phi(z)` by the mean and
    `2 phi(z) - 1 / sqrt(pi)` by the spread: both are bounded, where those of the single terms overflow for a small
    spread. The score does not change if mean and truth are shifted by the same amount: subtract a large
    common value from both to keep the precision.

    Args:
        mean: Mean of the forecast.
        std: Standard deviation of the forecast, not negative, of the same shape.
        truth: Truth, of the same shape.
    """
    if not mean.shape == std.shape == truth.shape:
        raise ValueError(
            f"mean, std and truth must have one shape, got {tuple(mean.shape)}, {tuple(std.shape)} and "
            f"{tuple(truth.shape)}"
        )
    return _GaussianCRPS.apply(mean, std, truth)  # type: ignore[return-value]


class _GaussianCRPS(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(mean, std, truth):  # pyright: ignore[reportIncompatibleMethodOverride]
        difference = truth - mean
        z = standardise(difference, std)
        return difference * torch.erf(z / _SQRT_2) + std * _by_std(z)

    @staticmethod
    def setup_context(ctx, inputs, output):
        del output
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, *grad_outputs):
        (gradient,) = grad_outputs
        mean, std, truth = ctx.saved_tensors
        z = standardise(truth - mean, std)
        by_truth = gradient * torch.erf(z / _SQRT_2)
        return -by_truth, gradient * _by_std(z), by_truth


def standardise(difference: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """Returns `difference / std`, or 0 where the difference is 0, however narrow the distribution. NaN stays NaN."""
    return torch.where(difference == 0.0, difference, difference / std)


def _by_std(z: torch.Tensor) -> torch.Tensor:
    return _TWO_DENSITIES * torch.exp(-0.5 * z * z) - _INVERSE_SQRT_PI


def ensemble_crps(members: torch.Tensor, truth: torch.Tensor, *, fair: bool = False) -> torch.Tensor:
    """CRPS of an ensemble, `mean_i |x_i - y| - sum_ij |x_i - x_j| / (2 M^2)`, at each pixel.

    This is the score of the empirical distribution of the members. `fair` divides by `2 M (M - 1)` instead, which gives
    the expected score of infinitely many members of which these are a sample: ensembles of 5 and 10 can be compared.

    Args:
        members: `(B, M, ...)`; `fair` needs at least two.
        truth: `(B, ...)`.
        fair: Correct for the number of members.

    Returns:
        `(B, ...)`. A fair score may be negative.
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

    At the network's output its gradient, times the number of pixels, is `-s (2 Phi(z) - 1)` by o0 and
    `std (2 phi(z) - 1 / sqrt(pi))` by o1: bounded by the spread, however large the miss. For the consequences for
    routing classification see `smoe.ops._classification.choice_errors`.

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
        """Returns the loss, a scalar.

        Args:
            prediction: `(B, 2, H, W)`.
            target: `(B, 3, H, W)`: truth, mean and spread of the ensemble in physical units. Further channels are
                ignored.
        """
        crps = corrected_crps(prediction, target)
        if self.weights is None:
            return crps.mean()
        if crps.shape[1] != len(self.weights):
            raise ValueError(f"there are {len(self.weights)} latitudes for {crps.shape[1]} rows")
        return (crps * self.weights.to(crps)).mean()


def corrected_crps(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """CRPS of the corrected ensemble at each pixel, `(B, H, W)`.

    Args:
        prediction: `(B, 2, H, W)`, the network's output.
        target: `(B, 3 or more, H, W)`: truth, mean and spread of the ensemble.
    """
    if target.ndim != 4 or target.shape[1] < 3:
        raise ValueError(
            f"target must be (B, 3, H, W): truth, mean and spread of the ensemble, got the shape {tuple(target.shape)}"
        )
    truth, mean, spread = target[:, 0], target[:, 1], target[:, 2]
    shift, std = gaussian_correction(prediction, spread)
    # Relative to the ensemble's mean: next to a geopotential of 50,000 the correction would keep four digits only.
    return gaussian_crps(shift, std, truth - mean)
