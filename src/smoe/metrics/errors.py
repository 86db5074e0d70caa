"""Mean squared and mean absolute error over all pixels."""

from __future__ import annotations

import torch
from torch import Tensor

from smoe.metrics.metric import Metric, check_pair


class MeanSquaredError(Metric):
    """Mean of the squared differences; NaN if any of them is."""

    names = ("mse",)

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the sum of squared differences and the number of pixels, `(1, 2)`."""
        prediction, target = check_pair(prediction, target)
        return _sum_and_count((prediction - target).square_())


class MeanAbsoluteError(Metric):
    """Mean of the absolute differences; NaN if any of them is."""

    names = ("mae",)

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the sum of absolute differences and the number of pixels, `(1, 2)`."""
        prediction, target = check_pair(prediction, target)
        return _sum_and_count((prediction - target).abs_())


def _sum_and_count(statistic: Tensor) -> Tensor:
    totals = statistic.new_empty((1, 2), dtype=torch.float64)
    totals[0, 0] = statistic.sum(dtype=torch.float64)
    totals[0, 1] = statistic.numel()
    return totals
