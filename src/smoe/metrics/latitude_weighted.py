"""Latitude-weighted errors in physical units, as WeatherBench scores forecasts (paper, section 3.2).

A row of pixels counts by its share of the globe's area: `w(lat) = cos(lat) / mean over rows of cos(lat)`. The mean over
rows is 1, so the mean over pixels of `w * x` is the area-weighted mean of x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from smoe.losses.latitude_weighted import latitude_weights
from smoe.metrics.metric import Metric, check_pair

Inverse = Callable[[Tensor], Tensor]


class LatitudeWeightedScore(Metric):
    """The base of scores of fields on the globe: row weights, and physical values from normalised ones.

    A prediction or target that is not a number makes the score of its channel not a number.

    Args:
        channel_names: Channels of prediction and target, such as `z_500`, in their order.
        latitude: Latitude of each row in degrees, `(H,)`.
        scales: Standard deviation that each channel was divided by; 1 where the values are physical already.
        inverses: Functions from normalised to physical values, by channel name, for channels that were not only
            shifted and scaled, such as the logarithm of precipitation. The scale of such a channel is not used.
    """

    prefix: str

    def __init__(
        self,
        channel_names: Sequence[str],
        latitude: Sequence[float] | np.ndarray,
        scales: Sequence[float] | np.ndarray,
        *,
        inverses: Mapping[str, Inverse] | None = None,
    ) -> None:
        self.channel_names = tuple(channel_names)
        self.names = tuple(f"{self.prefix}_{name}" for name in self.channel_names)
        self.weights = latitude_weights(latitude)
        self.scales = tuple(float(scale) for scale in scales)
        self.inverses = dict(inverses or {})
        if not self.channel_names or len(set(self.channel_names)) != len(self.channel_names):
            raise ValueError(f"channel_names must be different names, at least one, got {self.channel_names}")
        if len(self.scales) != len(self.channel_names):
            raise ValueError(f"there are {len(self.scales)} scales for {len(self.channel_names)} channels")
        for name, scale in zip(self.channel_names, self.scales, strict=True):
            if not 0.0 < scale < math.inf:
                raise ValueError(f"the scale of {name} must be positive and finite, got {scale}")
        unknown = sorted(set(self.inverses) - set(self.channel_names))
        if unknown:
            raise ValueError(f"inverses names {unknown[0]!r}, which is not among {', '.join(self.channel_names)}")

    def check(self, prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Refuse what does not have the channels and rows of this score.

        Args:
            prediction: `(B, C, H, W)`.
            target: The same shape.
        """
        prediction, target = check_pair(prediction, target)
        expected = (len(self.channel_names), len(self.weights))
        if prediction.ndim != 4 or prediction.shape[1:3] != expected:
            raise ValueError(
                f"prediction must have shape (B, {expected[0]}, {expected[1]}, W) for {', '.join(self.channel_names)}, "
                f"got {tuple(prediction.shape)}"
            )
        return prediction, target

    def differences(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return prediction minus target in physical units, `(B, C, H, W)`."""
        prediction, target = self.check(prediction, target)
        # Subtracted before they are scaled: a shift by a large mean would cost digits.
        differences = (prediction - target) * prediction.new_tensor(self.scales)[:, None, None]
        for channel, name in enumerate(self.channel_names):
            if name in self.inverses:
                inverse = self.inverses[name]
                differences[:, channel] = inverse(prediction[:, channel]) - inverse(target[:, channel])
        return differences

    def weighted_sums(self, fields: Tensor) -> Tensor:
        """Return the sum of `w * fields` of each sample and channel, float64, `(B, C)`."""
        return fields.sum(-1, dtype=torch.float64) @ self.weights.to(fields.device)


class LatitudeWeightedRMSE(LatitudeWeightedScore):
    """Root of the mean over times and pixels: `sqrt(mean_{t,lat,lon} w(lat) (f - o)^2)`, as `rmse_z_500`.

    The time mean is inside the root, as in WeatherBench's code and so in the tables of the paper.
    """

    prefix = "rmse"

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the weighted sum of squared differences and the number of pixels, `(C, 2)`."""
        differences = self.differences(prediction, target)
        return _with_count(self.weighted_sums(differences.square_()).sum(0), _num_pixels(differences))

    def reduction(self, sums: Sequence[float], count: float) -> float:
        """Return the root of the mean."""
        return math.sqrt(sums[0] / count)


class MeanOfRootsRMSE(LatitudeWeightedScore):
    """Mean over times of each forecast's root: `mean_t sqrt(mean_{lat,lon} w(lat) (f - o)^2)`, as `mean_rmse_z_500`.

    The formula that WeatherBench's article prints. Never larger than `LatitudeWeightedRMSE`.
    """

    prefix = "mean_rmse"

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the sum of the roots and the number of forecasts, `(C, 2)`."""
        differences = self.differences(prediction, target)
        num_pixels = differences.shape[2] * differences.shape[3]
        roots = (self.weighted_sums(differences.square_()) / num_pixels).sqrt_()
        return _with_count(roots.sum(0), len(differences))


class LatitudeWeightedMAE(LatitudeWeightedScore):
    """Mean absolute error: `mean_{t,lat,lon} w(lat) |f - o|`, as `mae_z_500`."""

    prefix = "mae"

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the weighted sum of absolute differences and the number of pixels, `(C, 2)`."""
        differences = self.differences(prediction, target)
        return _with_count(self.weighted_sums(differences.abs_()).sum(0), _num_pixels(differences))


def _num_pixels(fields: Tensor) -> int:
    return fields.shape[0] * fields.shape[2] * fields.shape[3]


def _with_count(sums: Tensor, count: float) -> Tensor:
    return torch.stack([sums, torch.full_like(sums, count)], dim=1)
