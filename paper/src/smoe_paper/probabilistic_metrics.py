"""Scores of ensembles and of normal distributions, at each pixel (paper section 3.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from smoe.losses import latitude_weights, standardise
from smoe.training.task import Metric
from smoe_paper.losses import corrected_crps, ensemble_crps, gaussian_correction
from smoe_paper.metrics import promote_pair


class ProbabilisticScore(Metric):
    """A score of distributions at the pixels of a grid.

    Args:
        latitude: Latitude of each row in degrees, `(H,)`: rows count by their area, and `_weighted` is added to the
            names. None, as in ENS-10: all pixels count alike.
    """

    score_names: tuple[str, ...]

    def __init__(self, latitude: Sequence[float] | np.ndarray | None = None) -> None:
        self.weights = None if latitude is None else latitude_weights(latitude)
        self.names = tuple(name if latitude is None else f"{name}_weighted" for name in self.score_names)

    def check(
        self, prediction: Tensor, target: Tensor, num_target_channels: int, num_channels: int | None = None
    ) -> tuple[Tensor, Tensor]:
        channels = "M" if num_channels is None else str(num_channels)
        is_pair = prediction.ndim == target.ndim == 4 and prediction.shape[0] == target.shape[0]
        if not is_pair or prediction.shape[2:] != target.shape[2:] or target.shape[1] < num_target_channels:
            raise ValueError(
                f"prediction must be (B, {channels}, H, W) and target (B, {num_target_channels} or more, H, W), got "
                f"{tuple(prediction.shape)} and {tuple(target.shape)}"
            )
        if num_channels is not None and prediction.shape[1] != num_channels:
            raise ValueError(f"prediction must have {num_channels} channels, got {prediction.shape[1]}")
        if self.weights is not None and prediction.shape[2] != len(self.weights):
            raise ValueError(f"there are {len(self.weights)} latitudes for {prediction.shape[2]} rows")
        return promote_pair(prediction, target)

    def sum_maps(self, maps: Tensor) -> Tensor:
        """The sum over the pixels of each map, times the weights, float64: `(..., H, W)` to `(...)`.

        The weights have mean 1, so the mean is this sum over the number of pixels, with and without them.
        """
        rows = maps.sum(-1, dtype=torch.float64)
        return rows.sum(-1) if self.weights is None else rows @ self.weights.to(maps.device)

    def mean_totals(self, *maps: Tensor) -> Tensor:
        """The sums of maps `(B, H, W)` and the number of pixels: `(1, len(maps) + 1)`."""
        sums = [self.sum_maps(each).sum() for each in maps]
        return torch.stack([*sums, sums[0].new_tensor(float(maps[0].numel()))])[None]


class GaussianCRPS(ProbabilisticScore):
    """Mean CRPS over samples and pixels, as `crps`."""

    score_names = ("crps",)

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        prediction, target = self.check(prediction, target, num_target_channels=3, num_channels=2)
        return self.mean_totals(corrected_crps(prediction, target))


class EECRPS(ProbabilisticScore):
    """Extreme event weighted CRPS, the mean of `|EFI| * CRPS`, as `eecrps`.

    Dates without an EFI, whose map is NaN throughout, do not count (`EfiDates` counts those that do); NaN at some
    pixels of a map makes the score NaN. If no date has one the score is NaN.
    """

    score_names = ("eecrps",)

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        prediction, target = self.check(prediction, target, num_target_channels=4, num_channels=2)
        weighted = target[:, 3].abs() * corrected_crps(prediction, target)
        return self.mean_totals(weighted[has_efi(target)])

    def values(self, totals: Tensor) -> dict[str, float]:
        return dict.fromkeys(self.names, math.nan) if float(totals[0, -1]) == 0.0 else super().values(totals)


class EfiDates(ProbabilisticScore):
    """How many dates the EECRPS is the mean over, as `efi_dates`."""

    score_names = ("efi_dates",)

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        _, target = self.check(prediction, target, num_target_channels=4)
        return torch.stack([has_efi(target).sum().double(), target.new_tensor(len(target), dtype=torch.float64)])[None]

    def reduction(self, sums: Sequence[float], count: float) -> float:
        del count
        return sums[0]


class GaussianSpreadSkill(ProbabilisticScore):
    """Spread over skill, as `spread_skill`: the root of the mean variance over the root mean squared error of the mean.

    1 if the distributions are as wide as their errors are large; below, they are overconfident.
    """

    score_names = ("spread_skill",)
    num_totals = 3

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        prediction, target = self.check(prediction, target, num_target_channels=3, num_channels=2)
        shift, std = gaussian_correction(prediction, target[:, 2])
        return self.mean_totals(std.square(), (target[:, 0] - target[:, 1] - shift).square())

    def reduction(self, sums: Sequence[float], count: float) -> float:
        del count
        return spread_skill_ratio(sums[0], sums[1])


class PitHistogram(ProbabilisticScore):
    """How often the truth falls into each of equally probable parts of its distribution, as `pit_0`, `pit_1`, ...

    The values are shares, of sum 1; all are equal if the forecasts are calibrated, the outer ones are large if they are
    overconfident. It is to a distribution what the rank histogram is to an ensemble. A part holds its lower border.
    """

    def __init__(self, num_bins: int = 11, latitude: Sequence[float] | np.ndarray | None = None) -> None:
        self.score_names = tuple(f"pit_{number}" for number in range(num_bins))
        super().__init__(latitude)

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
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
    """Whether each sample of a target `(B, 4, H, W)` has an EFI at one pixel at least, `(B,)`."""
    efi = target[:, 3]
    return ~efi.isnan().all(dim=(1, 2)) if efi.numel() else torch.zeros(len(efi), dtype=torch.bool)


def spread_skill_ratio(variance: float, squared_error: float) -> float:
    """The root of `variance / squared_error`; infinite without error."""
    if squared_error == 0.0:
        return math.inf
    return math.sqrt(variance / squared_error)


class EnsembleCRPS(ProbabilisticScore):
    """Mean CRPS of the members, as `ensemble_crps` or `fair_ensemble_crps`; see `smoe_paper.losses.ensemble_crps`."""

    def __init__(self, *, fair: bool = False, latitude: Sequence[float] | np.ndarray | None = None) -> None:
        self.fair = fair
        self.score_names = ("fair_ensemble_crps" if fair else "ensemble_crps",)
        super().__init__(latitude)

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        members, target = self.check(prediction, target, num_target_channels=1)
        return self.mean_totals(ensemble_crps(members, target[:, 0], fair=self.fair))


class EnsembleSpreadSkill(ProbabilisticScore):
    """Spread over skill of the members, as `ensemble_spread_skill`.

    The root of `(M + 1) / M` times the mean unbiased variance, over the root mean squared error of the ensemble's mean.
    With the factor, which stands for the error of a mean of M members, it is 1 if the truth is as another member.
    """

    score_names = ("ensemble_spread_skill",)
    num_totals = 3

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        members, target = self.check(prediction, target, num_target_channels=1)
        num_members = members.shape[1]
        if num_members < 2:
            raise ValueError(f"the spread needs 2 members, got {num_members}")
        # Relative to the truth, so that the mean of large numbers does not cost digits.
        errors = members - target[:, :1]
        variance = errors.var(dim=1) * ((num_members + 1) / num_members)
        return self.mean_totals(variance, errors.mean(dim=1).square())

    def reduction(self, sums: Sequence[float], count: float) -> float:
        del count
        return spread_skill_ratio(sums[0], sums[1])


class RankHistogram(ProbabilisticScore):
    """How often the truth has each rank among the members, as `rank_0` (below all) to `rank_M` (above all).

    The values are shares, of sum 1; all are equal for a reliable ensemble. A truth that equals k members may have any
    of k + 1 ranks and counts as `1 / (k + 1)` for each of them.
    """

    def __init__(self, num_members: int, latitude: Sequence[float] | np.ndarray | None = None) -> None:
        self.num_members = num_members
        self.score_names = tuple(f"rank_{rank}" for rank in range(num_members + 1))
        super().__init__(latitude)

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        members, target = self.check(prediction, target, num_target_channels=1, num_channels=self.num_members)
        truth = target[:, :1]
        lowest, num_equal = (members < truth).sum(dim=1), (members == truth).sum(dim=1)
        share = 1.0 / (num_equal + 1).double()
        sums = torch.stack(
            [
                self.sum_maps(share * ((rank >= lowest) & (rank <= lowest + num_equal))).sum()
                for rank in range(self.num_members + 1)
            ]
        )
        # A comparison with NaN is false: without this, it would count as a member above the truth.
        sums = sums.where(~(members.isnan().any() | truth.isnan().any()), math.nan)
        return torch.stack([sums, torch.full_like(sums, float(lowest.numel()))], dim=1)
