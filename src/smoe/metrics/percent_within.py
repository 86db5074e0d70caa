"""Percentage of pixels within a relative tolerance: the accuracy of the paper's heat diffusion table."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from smoe.metrics.metric import Metric, check_pair


class PercentWithin(Metric):
    """Percentage of pixels with `|prediction - target| <= absolute_tolerance + tolerance * |target|`.

    Exactly 100.0 means all pixels and nothing less. A pixel whose prediction or target is not finite is not within.
    """

    def __init__(
        self,
        tolerance: float = 0.01,
        absolute_tolerance: float = 1e-8,
        region_map: np.ndarray | Tensor | None = None,
    ) -> None:
        """Name the metric after its tolerance, `within_1_percent` for 0.01.

        Args:
            tolerance: Tolerance relative to the target.
            absolute_tolerance: Tolerance that is added, for targets close to zero.
            region_map: Region types 0, ..., n - 1, `(H, W)`. Each type is reported too, as `within_1_percent/region_0`
                and so on.
        """
        for name, value in (("tolerance", tolerance), ("absolute_tolerance", absolute_tolerance)):
            if not 0.0 <= value < math.inf:
                raise ValueError(f"{name} must be finite and not negative, got {value}")
        self.tolerance = tolerance
        self.absolute_tolerance = absolute_tolerance
        # An array stays on the host, whatever the default device is: its values are checked.
        self.region_map = torch.from_numpy(region_map) if isinstance(region_map, np.ndarray) else region_map
        overall = f"within_{100 * tolerance:g}_percent"
        self.names: tuple[str, ...] = (overall,)
        if self.region_map is not None:
            self._region_sizes = _count_regions(self.region_map)
            self.names += tuple(f"{overall}/region_{kind}" for kind in range(len(self._region_sizes)))

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the number of pixels within the tolerance and of all pixels, overall and then for each region type.

        Args:
            prediction: `(B, ..., H, W)`; with a region map, H and W are those of the map.
            target: The same shape.

        Returns:
            Both numbers, float64, `(len(names), 2)`.
        """
        prediction, target = check_pair(prediction, target)
        difference = (prediction - target).abs_()
        bound = target.abs().mul_(self.tolerance).add_(self.absolute_tolerance)
        # An infinite target would have an infinite bound, and anything would be within it.
        bound.clamp_(max=torch.finfo(bound.dtype).max)
        is_within = difference <= bound

        totals = torch.empty((len(self.names), 2), dtype=torch.float64, device=prediction.device)
        totals[0, 0] = is_within.count_nonzero()
        totals[0, 1] = is_within.numel()
        if self.region_map is not None:
            if is_within.ndim < 2 or is_within.shape[-2:] != self.region_map.shape:
                raise ValueError(
                    f"prediction must end in the region map's shape {tuple(self.region_map.shape)}, "
                    f"got {tuple(is_within.shape)}"
                )
            num_maps = math.prod(is_within.shape[:-2])
            num_within = is_within.reshape(num_maps, self.region_map.numel()).sum(0, dtype=torch.float64)
            totals[1:, 0] = 0.0
            totals[1:, 0].index_add_(0, self.region_map.flatten().to(prediction.device, torch.int64), num_within)
            totals[1:, 1] = self._region_sizes.to(prediction.device) * num_maps
        return totals

    def reduction(self, sums: Sequence[float], count: float) -> float:
        """Return the percentage."""
        # Multiplied first: the product is exact up to 9e13 pixels, so the quotient is 100.0 only if both are equal.
        return 100.0 * sums[0] / count


def _count_regions(region_map: Tensor) -> Tensor:
    if region_map.ndim != 2 or region_map.numel() == 0:
        raise ValueError(f"region_map must have shape (H, W), got {tuple(region_map.shape)}")
    if region_map.is_floating_point() or region_map.is_complex() or region_map.dtype == torch.bool:
        raise ValueError(f"region_map must hold integers, got {region_map.dtype}")
    if region_map.min() < 0:
        raise ValueError(f"region types must be 0, 1, ..., got {int(region_map.min())}")
    sizes = region_map.flatten().to(torch.int64).bincount()
    if not sizes.all():
        missing = int((sizes == 0).nonzero()[0])
        raise ValueError(f"region types must be 0, 1, ... without a gap, but type {missing} is missing")
    return sizes
