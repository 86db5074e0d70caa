"""How well the departures from a climatology agree: WeatherBench's ACC."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from smoe.metrics.latitude_weighted import Inverse, LatitudeWeightedScore


class AnomalyCorrelation(LatitudeWeightedScore):
    """Anomaly correlation over all times and pixels at once, as `acc_z_500`.

    With anomalies `f' = f - c - mean(f - c)` of the forecast and `a' = o - c - mean(o - c)` of the truth, the means
    being plain ones over all times and pixels:

        ACC = sum w(lat) f' a' / sqrt(sum w(lat) f'^2 * sum w(lat) a'^2)

    WeatherBench's climatology c is the time mean of the truth over the test period. NaN where forecast or truth never
    departs from it.

    Args:
        channel_names: Channels of prediction and target, in their order.
        latitude: Latitude of each row in degrees, `(H,)`.
        scales: Standard deviation that each channel was divided by.
        climatology: Climatology in physical units, `(C, H, W)`.
        offsets: Mean that was subtracted from each channel before it was scaled.
        inverses: See `LatitudeWeightedScore`.
    """

    prefix = "acc"
    # f, a, w f, w a, w f a, w f f, w a a and the count, which is the sum of w too: the weights of a map have mean 1.
    num_totals = 8

    def __init__(
        self,
        channel_names: Sequence[str],
        latitude: Sequence[float] | np.ndarray,
        scales: Sequence[float] | np.ndarray,
        climatology: np.ndarray | Tensor,
        *,
        offsets: Sequence[float] | np.ndarray,
        inverses: Mapping[str, Inverse] | None = None,
    ) -> None:
        super().__init__(channel_names, latitude, scales, inverses=inverses)
        self.climatology = torch.as_tensor(climatology, dtype=torch.float64).clone()
        expected = (len(self.channel_names), len(self.weights))
        if self.climatology.ndim != 3 or self.climatology.shape[:2] != expected:
            raise ValueError(
                f"climatology must have shape ({expected[0]}, {expected[1]}, W), got {tuple(self.climatology.shape)}"
            )
        if not bool(self.climatology.isfinite().all()):
            raise ValueError("climatology holds values that are not finite")
        if len(offsets) != len(self.channel_names):
            raise ValueError(f"there are {len(offsets)} offsets for {len(self.channel_names)} channels")
        # In normalised units, float64, where that is possible: the anomaly is then a difference of small numbers.
        for channel, name in enumerate(self.channel_names):
            if name not in self.inverses:
                self.climatology[channel] = (self.climatology[channel] - float(offsets[channel])) / self.scales[channel]

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the sums that the means and the three products need, and the number of pixels, `(C, 8)`."""
        prediction, target = self.check(prediction, target)
        if prediction.shape[3] != self.climatology.shape[2]:
            raise ValueError(
                f"prediction has {prediction.shape[3]} columns, the climatology {self.climatology.shape[2]}"
            )
        forecast, actual = self._anomalies(prediction), self._anomalies(target)
        num_maps, num_channels, _, num_columns = forecast.shape
        count = float(num_maps * len(self.weights) * num_columns)
        sums = [
            forecast.sum((0, 2, 3)),
            actual.sum((0, 2, 3)),
            *(
                self.weighted_sums(fields).sum(0)
                for fields in (forecast, actual, forecast * actual, forecast.square(), actual.square())
            ),
            forecast.new_full((num_channels,), count),
        ]
        return torch.stack(sums, dim=1)

    def reduction(self, sums: Sequence[float], count: float) -> float:
        """Return the correlation."""
        f, a, wf, wa, wfa, wff, waa = sums
        f, a = f / count, a / count
        covariance = wfa - f * wa - a * wf + f * a * count
        variances = wff - 2 * f * wf + f * f * count, waa - 2 * a * wa + a * a * count
        # Also false for NaN. A difference of equal sums may be a rounding error below zero.
        if not (variances[0] > 0 and variances[1] > 0):
            return math.nan
        return covariance / math.sqrt(variances[0]) / math.sqrt(variances[1])

    def _anomalies(self, fields: Tensor) -> Tensor:
        climatology = self.climatology.to(fields.device)
        anomalies = (fields.double() - climatology) * climatology.new_tensor(self.scales)[:, None, None]
        for channel, name in enumerate(self.channel_names):
            if name in self.inverses:
                anomalies[:, channel] = self.inverses[name](fields[:, channel]).double() - climatology[channel]
        return anomalies
