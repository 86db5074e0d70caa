"""The CRPS of a normal distribution, and the weights of latitudes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

__all__ = ["gaussian_crps", "latitude_weights"]


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
