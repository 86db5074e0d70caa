"""Objectives of a regression on a grid with masked pixels and area weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from smoe.losses import gaussian_crps
from smoe.regression.options import Objective
from smoe.training.metrics import Metric

# Bounds of the logarithm of the spread, in standard deviations of the target.
_LOWEST, _HIGHEST = -9.0, 9.0


class GridObjective(nn.Module):
    """Weighted mean of an error over samples, targets and pixels; pixels whose target is NaN do not count.

    Args:
        kind: `mse`, `mae`, `quantiles` (pinball loss) or `gaussian` (CRPS of mean and spread).
        weights: Weight of each pixel, `(H, W)`; all alike if None.
        quantiles: Quantiles of `quantiles`.
    """

    weights: Tensor | None
    levels: Tensor

    def __init__(self, kind: Objective, weights: Tensor | None = None, quantiles: Sequence[float] = ()) -> None:
        super().__init__()
        self.kind: Objective = kind
        self.register_buffer("weights", weights, persistent=False)
        self.register_buffer("levels", torch.tensor(quantiles, dtype=torch.float32), persistent=False)

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        """A scalar from `(B, K * n, H, W)` and `(B, K, H, W)`, with n numbers for each of K targets."""
        total, weight = self.totals(prediction, target)
        return total / weight.clamp_min(torch.finfo(weight.dtype).tiny)

    def totals(self, prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Sum of the weighted errors, and of the weights."""
        is_there = ~target.isnan()
        errors = self.errors(prediction.float(), target.float().nan_to_num(0.0))
        weights = is_there.to(errors.dtype)
        if self.weights is not None:
            weights = weights * self.weights.to(errors)
        return (errors * weights).sum(), weights.sum()

    def errors(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Error of each target and pixel, `(B, K, H, W)`."""
        if self.kind == "mse":
            return (prediction - target).square()
        if self.kind == "mae":
            return (prediction - target).abs()
        if self.kind == "gaussian":
            mean, std = split_gaussian(prediction)
            return gaussian_crps(mean, std, target)
        below = target[:, :, None] - prediction.unflatten(1, (target.shape[1], -1))
        levels = self.levels.to(prediction)[:, None, None]
        return torch.maximum(levels * below, (levels - 1.0) * below).mean(dim=2)


def split_gaussian(output: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and spread from `(B, K * 2, H, W)`: two `(B, K, H, W)`."""
    parts = output.unflatten(1, (-1, 2))
    return parts[:, :, 0], parts[:, :, 1].clamp(_LOWEST, _HIGHEST).exp()


class MeanObjective(Metric):
    """The objective over a whole data set, named `loss`.

    Args:
        objective: Objective; its weights are the same for all batches.
    """

    names = ("loss",)

    def __init__(self, objective: GridObjective) -> None:
        self.objective = objective

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the sum of weighted errors and the sum of weights, `(1, 2)`."""
        self.objective.to(prediction.device)
        with torch.no_grad():
            total, weight = self.objective.totals(prediction, target)
        return torch.stack([total.double(), weight.double()])[None]


def start_output(objective: Objective, quantiles: Sequence[float]) -> list[float]:
    """Numbers that a net is to give at the start for a target of mean 0 and spread 1."""
    if objective == "gaussian":
        return [0.0, 0.0]
    if objective != "quantiles":
        return [0.0]
    return [math.sqrt(2.0) * float(torch.erfinv(torch.tensor(2.0 * level - 1.0))) for level in quantiles]
