"""Scores of ensembles and of normal distributions, as means over samples and pixels (paper section 3.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import scoringrules
import torch
from torch import Tensor

from smoe.training.task import Metric
from smoe_paper.losses import corrected_crps, gaussian_correction
from smoe_paper.metrics import promote_pair


def _mean_totals(*maps: Tensor) -> Tensor:
    """The sums of maps `(B, H, W)`, float64, and the number of pixels: `(1, len(maps) + 1)`."""
    sums = [each.sum(dtype=torch.float64) for each in maps]
    return torch.stack([*sums, sums[0].new_tensor(float(maps[0].numel()))])[None]


class GaussianCRPS(Metric):
    """Mean CRPS over samples and pixels, as `crps`."""

    names = ("crps",)

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        return _mean_totals(corrected_crps(*promote_pair(prediction, target)))


class EECRPS(Metric):
    """Extreme event weighted CRPS, the mean of `|EFI| * CRPS`, as `eecrps`.

    Dates without an EFI, whose map is NaN throughout, do not count (`EfiDates` counts those that do); NaN at some
    pixels of a map makes the score NaN. If no date has one the score is NaN.
    """

    names = ("eecrps",)

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        prediction, target = promote_pair(prediction, target)
        weighted = target[:, 3].abs() * corrected_crps(prediction, target)
        return _mean_totals(weighted[has_efi(target)])

    def values(self, totals: Tensor) -> dict[str, float]:
        return dict.fromkeys(self.names, math.nan) if float(totals[0, -1]) == 0.0 else super().values(totals)


class EfiDates(Metric):
    """How many dates the EECRPS is the mean over, as `efi_dates`."""

    names = ("efi_dates",)

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        del prediction
        return torch.stack([has_efi(target).sum().double(), target.new_tensor(len(target), dtype=torch.float64)])[None]

    def reduction(self, sums: Sequence[float], count: float) -> float:
        del count
        return sums[0]


class GaussianSpreadSkill(Metric):
    """Spread over skill, as `spread_skill`: the root of the mean variance over the root mean squared error of the mean.

    1 if the distributions are as wide as their errors are large; below, they are overconfident.
    """

    names = ("spread_skill",)
    num_totals = 3

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        prediction, target = promote_pair(prediction, target)
        shift, std = gaussian_correction(prediction, target[:, 2])
        return _mean_totals(std.square(), (target[:, 0] - target[:, 1] - shift).square())

    def reduction(self, sums: Sequence[float], count: float) -> float:
        del count
        return math.inf if sums[1] == 0.0 else math.sqrt(sums[0] / sums[1])


def has_efi(target: Tensor) -> Tensor:
    """Whether each sample of a target `(B, 4, H, W)` has an EFI at one pixel at least, `(B,)`."""
    efi = target[:, 3]
    return ~efi.isnan().all(dim=(1, 2)) if efi.numel() else torch.zeros(len(efi), dtype=torch.bool)


class EnsembleCRPS(Metric):
    """Mean CRPS of the members `(B, M, H, W)`, as `ensemble_crps`.

    `fair_ensemble_crps` is the expected score of infinitely many members of which these are a sample.
    """

    def __init__(self, *, fair: bool = False) -> None:
        self.estimator = "fair" if fair else "nrg"
        self.names = ("fair_ensemble_crps" if fair else "ensemble_crps",)

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        members, target = promote_pair(prediction, target)
        # Relative to the truth, as large numbers with small differences would cost digits.
        errors = members - target[:, :1]
        zeros = torch.zeros_like(errors[:, 0])
        crps: Any = scoringrules.crps_ensemble(zeros, errors, m_axis=1, estimator=self.estimator, backend="torch")
        return _mean_totals(crps)


class EnsembleSpreadSkill(GaussianSpreadSkill):
    """Spread over skill of the members, as `ensemble_spread_skill`.

    The root of `(M + 1) / M` times the mean unbiased variance, over the root mean squared error of the ensemble's mean.
    With the factor, which stands for the error of a mean of M members, it is 1 if the truth is as another member.
    """

    names = ("ensemble_spread_skill",)

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        members, target = promote_pair(prediction, target)
        num_members = members.shape[1]
        # Relative to the truth, so that the mean of large numbers does not cost digits.
        errors = members - target[:, :1]
        variance = errors.var(dim=1) * ((num_members + 1) / num_members)
        return _mean_totals(variance, errors.mean(dim=1).square())
