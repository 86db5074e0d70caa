"""The base of scores of probabilistic forecasts on a grid: shapes, and means over pixels with and without area."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from smoe.losses.latitude_weighted import latitude_weights
from smoe.metrics.metric import Metric, promote_pair


class ProbabilisticScore(Metric):
    """A score of distributions at the pixels of a grid.

    A value that is not a number makes the score not a number.

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
        """Refuse what does not have the channels and rows of this score; return both in float32 or float64.

        Args:
            prediction: `(B, num_channels, H, W)`.
            target: `(B, at least num_target_channels, H, W)`, on the same grid.
            num_target_channels: Number of channels of the target that the score needs.
            num_channels: Number of channels of the prediction; None for any number.
        """
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
        """Return the sum over the pixels of each map, times the weights, float64: `(..., H, W)` to `(...)`.

        The weights have mean 1, so the mean is this sum over the number of pixels, with and without them.
        """
        rows = maps.sum(-1, dtype=torch.float64)
        return rows.sum(-1) if self.weights is None else rows @ self.weights.to(maps.device)

    def mean_totals(self, *maps: Tensor) -> Tensor:
        """Return the sums of maps `(B, H, W)` and the number of pixels: `(1, len(maps) + 1)`."""
        sums = [self.sum_maps(each).sum() for each in maps]
        return torch.stack([*sums, sums[0].new_tensor(float(maps[0].numel()))])[None]
