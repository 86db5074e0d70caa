"""Scores of an ensemble as it is: its members at each pixel.

The prediction is the members `(B, M, H, W)`; the target's first channel is the truth `(B, 1 or more, H, W)`, both in
physical units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from smoe.losses.crps import ensemble_crps
from smoe.metrics.gaussian import spread_skill_ratio
from smoe.metrics.probabilistic import ProbabilisticScore


class EnsembleCRPS(ProbabilisticScore):
    """Mean CRPS of the members, as `ensemble_crps` or `fair_ensemble_crps`.

    Args:
        fair: Correct for the number of members; see `smoe.losses.ensemble_crps`.
        latitude: Latitude of each row in degrees, `(H,)`; see `ProbabilisticScore`.
    """

    def __init__(self, *, fair: bool = False, latitude: Sequence[float] | np.ndarray | None = None) -> None:
        self.fair = fair
        self.score_names = ("fair_ensemble_crps" if fair else "ensemble_crps",)
        super().__init__(latitude)

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the sum of the scores and the number of pixels, `(1, 2)`."""
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
        """Return the sums of the variances and of the squared errors, and the number of pixels, `(1, 3)`."""
        members, target = self.check(prediction, target, num_target_channels=1)
        num_members = members.shape[1]
        if num_members < 2:
            raise ValueError(f"the spread needs 2 members, got {num_members}")
        # Relative to the truth, so that the mean of large numbers does not cost digits.
        errors = members - target[:, :1]
        variance = errors.var(dim=1) * ((num_members + 1) / num_members)
        return self.mean_totals(variance, errors.mean(dim=1).square())

    def reduction(self, sums: Sequence[float], count: float) -> float:
        """Return the ratio of the roots; infinite for forecasts without error."""
        del count
        return spread_skill_ratio(sums[0], sums[1])


class RankHistogram(ProbabilisticScore):
    """How often the truth has each rank among the members, as `rank_0` (below all) to `rank_M` (above all).

    The values are shares, of sum 1; all are equal for a reliable ensemble. A truth that equals k members may have any
    of k + 1 ranks and counts as `1 / (k + 1)` for each of them.

    Args:
        num_members: M, the number of members.
        latitude: Latitude of each row in degrees, `(H,)`; see `ProbabilisticScore`.
    """

    def __init__(self, num_members: int, latitude: Sequence[float] | np.ndarray | None = None) -> None:
        if num_members < 1:
            raise ValueError(f"num_members must be at least 1, got {num_members}")
        self.num_members = num_members
        self.score_names = tuple(f"rank_{rank}" for rank in range(num_members + 1))
        super().__init__(latitude)

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the number of pixels of each rank and of all, `(M + 1, 2)`."""
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
