"""Scores of a corrected ensemble: a normal distribution at each pixel (paper section 3.3).

The prediction is the network's output `(B, 2, H, W)`; the target holds truth, mean and spread of the ensemble, in
physical units, and where it is known the Extreme Forecast Index (EFI): `(B, 3 or 4, H, W)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from smoe.losses.crps import corrected_crps, standardise
from smoe.metrics.probabilistic import ProbabilisticScore
from smoe.nn._baselines import gaussian_correction


class GaussianCRPS(ProbabilisticScore):
    """Mean CRPS over samples and pixels, as `crps`."""

    score_names = ("crps",)

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the sum of the scores and the number of pixels, `(1, 2)`."""
        prediction, target = self.check(prediction, target, num_target_channels=3, num_channels=2)
        return self.mean_totals(corrected_crps(prediction, target))


class EECRPS(ProbabilisticScore):
    """Extreme event weighted CRPS, the mean of `|EFI| * CRPS`, as `eecrps`.

    Dates without an EFI, whose map is NaN throughout, do not count (`EfiDates` counts those that do); NaN at some
    pixels of a map makes the score NaN. If no date has one the score is NaN.
    """

    score_names = ("eecrps",)

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the sum of the weighted scores and the number of pixels of the dates that have an EFI, `(1, 2)`."""
        prediction, target = self.check(prediction, target, num_target_channels=4, num_channels=2)
        weighted = target[:, 3].abs() * corrected_crps(prediction, target)
        return self.mean_totals(weighted[has_efi(target)])

    def values(self, totals: Tensor) -> dict[str, float]:
        """Return the score, NaN if no date has an EFI."""
        return dict.fromkeys(self.names, math.nan) if float(totals[0, -1]) == 0.0 else super().values(totals)


class EfiDates(ProbabilisticScore):
    """How many dates the EECRPS is the mean over, as `efi_dates`."""

    score_names = ("efi_dates",)

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the number of dates that have an EFI, and of all, `(1, 2)`."""
        _, target = self.check(prediction, target, num_target_channels=4)
        return torch.stack([has_efi(target).sum().double(), target.new_tensor(len(target), dtype=torch.float64)])[None]

    def reduction(self, sums: Sequence[float], count: float) -> float:
        """Return the number of dates."""
        del count
        return sums[0]


class GaussianSpreadSkill(ProbabilisticScore):
    """Spread over skill, as `spread_skill`: the root of the mean variance over the root mean squared error of the mean.

    1 if the distributions are as wide as their errors are large; below, they are overconfident.
    """

    score_names = ("spread_skill",)
    num_totals = 3

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the sums of the variances and of the squared errors, and the number of pixels, `(1, 3)`."""
        prediction, target = self.check(prediction, target, num_target_channels=3, num_channels=2)
        shift, std = gaussian_correction(prediction, target[:, 2])
        return self.mean_totals(std.square(), (target[:, 0] - target[:, 1] - shift).square())

    def reduction(self, sums: Sequence[float], count: float) -> float:
        """Return the ratio of the roots; infinite for forecasts without error."""
        del count
        return spread_skill_ratio(sums[0], sums[1])


class PitHistogram(ProbabilisticScore):
    """How often the truth falls into each of equally probable parts of its distribution, as `pit_0`, `pit_1`, ...

    The values are shares, of sum 1; all are equal if the forecasts are calibrated, the outer ones are large if they are
    overconfident. It is to a distribution what the rank histogram is to an ensemble. A part holds its lower border.

    Args:
        num_bins: Number of parts.
        latitude: Latitude of each row in degrees, `(H,)`; see `ProbabilisticScore`.
    """

    def __init__(self, num_bins: int = 11, latitude: Sequence[float] | np.ndarray | None = None) -> None:
        if num_bins < 2:
            raise ValueError(f"num_bins must be at least 2, got {num_bins}")
        self.score_names = tuple(f"pit_{number}" for number in range(num_bins))
        super().__init__(latitude)

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the number of pixels in each part and of all, `(num_bins, 2)`."""
        prediction, target = self.check(prediction, target, num_target_channels=3, num_channels=2)
        shift, std = gaussian_correction(prediction, target[:, 2])
        probability = torch.special.ndtr(standardise(target[:, 0] - target[:, 1] - shift, std))
        num_bins = len(self.score_names)
        part = (probability * num_bins).floor().clamp(max=num_bins - 1)
        sums = torch.stack([self.sum_maps((part == number).double()).sum() for number in range(num_bins)])
        # A comparison with NaN is false: without this, such pixels would only be missing.
        sums = sums.where(~probability.isnan().any(), math.nan)
        return torch.stack([sums, torch.full_like(sums, float(part.numel()))], dim=1)


def has_efi(target: Tensor) -> Tensor:
    """Return whether each sample of a target `(B, 4, H, W)` has an EFI at one pixel at least, `(B,)`."""
    efi = target[:, 3]
    return ~efi.isnan().all(dim=(1, 2)) if efi.numel() else torch.zeros(len(efi), dtype=torch.bool)


def spread_skill_ratio(variance: float, squared_error: float) -> float:
    """Return the root of `variance / squared_error`; infinite without error."""
    if squared_error == 0.0:
        return math.inf
    return math.sqrt(variance / squared_error)
