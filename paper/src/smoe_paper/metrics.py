"""Metrics of fields, classes and ensembles, as totals that add up over batches and processes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from smoe.losses import latitude_weights
from smoe.training.task import Metric
from smoe_paper.losses import corrected_crps


def check_pair(prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Refuse a pair that would broadcast or is not real-valued, and bring half precision to float32."""
    if prediction.shape != target.shape:
        raise ValueError(
            f"prediction and target must have the same shape, got {tuple(prediction.shape)} and {tuple(target.shape)}"
        )
    return promote_pair(prediction, target)


def promote_pair(prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Refuse what is not real-valued; return both without gradient, in float32 or float64."""
    if not (prediction.is_floating_point() and target.is_floating_point()):
        raise ValueError(f"prediction and target must be floating point, got {prediction.dtype} and {target.dtype}")
    dtype = torch.promote_types(torch.float32, torch.promote_types(prediction.dtype, target.dtype))
    return prediction.detach().to(dtype), target.detach().to(dtype)


class MeanAbsoluteError(Metric):
    """Mean of the absolute differences; NaN if any of them is."""

    names = ("mae",)

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        prediction, target = check_pair(prediction, target)
        statistic = self._statistic(prediction - target)
        return _with_count(statistic.sum(dtype=torch.float64)[None], statistic.numel())

    def _statistic(self, differences: Tensor) -> Tensor:
        return differences.abs_()


class MeanSquaredError(MeanAbsoluteError):
    """Mean of the squared differences; NaN if any of them is."""

    names = ("mse",)

    def _statistic(self, differences: Tensor) -> Tensor:
        return differences.square_()


class Percentage(Metric):
    """The base of percentages; exactly 100.0 means all and nothing less."""

    def reduction(self, sums: Sequence[float], count: float) -> float:
        # Multiplied first: the product is exact up to 9e13, so the quotient is 100.0 only if both are equal.
        return 100.0 * sums[0] / count


class PercentWithin(Percentage):
    """Percentage of pixels with `|prediction - target| <= absolute_tolerance + tolerance * |target|`.

    A pixel whose prediction or target is not finite is not within. Named after the tolerance, `within_1_percent` for
    0.01; with a region map, also of each region type.
    """

    def __init__(
        self,
        tolerance: float = 0.01,
        absolute_tolerance: float = 1e-8,
        region_map: np.ndarray | Tensor | None = None,
    ) -> None:
        self.tolerance, self.absolute_tolerance = tolerance, absolute_tolerance
        # An array stays on the host, whatever the default device is: its values are checked.
        self.region_map = torch.from_numpy(region_map) if isinstance(region_map, np.ndarray) else region_map
        overall = f"within_{100 * tolerance:g}_percent"
        self.names: tuple[str, ...] = (overall,)
        if self.region_map is not None:
            self._region_sizes = self.region_map.flatten().to(torch.int64).bincount()
            self.names += tuple(f"{overall}/region_{kind}" for kind in range(len(self._region_sizes)))

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The number of pixels within the tolerance and of all pixels, overall and then for each region type."""
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


class LatitudeWeightedRMSE(Metric):
    """Root of the mean over times and pixels: `sqrt(mean_{t,lat,lon} w(lat) (f - o)^2)`, as `rmse_z_500`.

    The time mean is inside the root, as in WeatherBench's code and so in the tables of the paper.

    Args:
        channel_names: Channels of prediction and target, such as `z_500`, in their order.
        latitude: Latitude of each row in degrees, `(H,)`.
        scales: Standard deviation that each channel was divided by; 1 where the values are physical already.
    """

    def __init__(
        self,
        channel_names: Sequence[str],
        latitude: Sequence[float] | np.ndarray,
        scales: Sequence[float] | np.ndarray,
    ) -> None:
        self.names = tuple(f"rmse_{name}" for name in channel_names)
        self.weights = latitude_weights(latitude)
        self.scales = tuple(float(scale) for scale in scales)

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        prediction, target = check_pair(prediction, target)
        expected = (len(self.names), len(self.weights))
        if prediction.ndim != 4 or prediction.shape[1:3] != expected:
            raise ValueError(
                f"prediction must have shape (B, {expected[0]}, {expected[1]}, W) for {', '.join(self.names)}, "
                f"got {tuple(prediction.shape)}"
            )
        # Subtracted before they are scaled: a shift by a large mean would cost digits.
        differences = (prediction - target) * prediction.new_tensor(self.scales)[:, None, None]
        of_rows = differences.square_().sum((0, -1), dtype=torch.float64)
        return _with_count(of_rows @ self.weights.to(of_rows.device), differences[:, 0].numel())

    def reduction(self, sums: Sequence[float], count: float) -> float:
        return math.sqrt(sums[0] / count)


def _with_count(sums: Tensor, count: float) -> Tensor:
    return torch.stack([sums, torch.full_like(sums, count)], dim=1)


class Accuracy(Percentage):
    """Percentage of samples whose most likely class is the true one.

    Of equal logits the lower class counts as the more likely, so that a constant answer is not right everywhere. A
    sample with a logit that is not a number counts as wrong.
    """

    names = ("accuracy",)

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        right = torch.count_nonzero(class_ranks(prediction, target) == 0)
        return _with_count(right.double()[None], len(target))


def class_ranks(prediction: Tensor, target: Tensor) -> Tensor:
    """Return how many classes are more likely than the true one, `(B,)`; N for a sample with a NaN among its logits."""
    if prediction.ndim != 2 or target.shape != prediction.shape[:1] or target.is_floating_point():
        raise ValueError(
            f"prediction must be logits (B, N) and target integer classes (B,), got {tuple(prediction.shape)} and "
            f"{target.dtype} of {tuple(target.shape)}"
        )
    num_classes = prediction.shape[1]
    if target.numel() and not 0 <= int(target.min()) <= int(target.max()) < num_classes:
        raise ValueError(f"classes must be in [0, {num_classes - 1}], got {int(target.min())} to {int(target.max())}")
    prediction, target = prediction.detach(), target.long()[:, None]
    own = prediction.gather(1, target)
    numbers = torch.arange(num_classes, device=prediction.device)
    is_ahead = (prediction > own) | ((prediction == own) & (numbers < target))
    rank = is_ahead.sum(dim=1)
    return rank.masked_fill_(prediction.isnan().any(dim=1), num_classes)


class MeanCrossEntropy(Metric):
    """The mean over all samples of the cross-entropy, in nats; reported as `cross_entropy`."""

    names = ("cross_entropy",)

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        # A sum of many in float32 would lose digits.
        target = target.double() if target.is_floating_point() else target.long()
        total = F.cross_entropy(prediction.detach().double(), target, reduction="sum")
        return _with_count(total[None], len(target))


def _mean_totals(values: Tensor) -> Tensor:
    return _with_count(values.sum(dtype=torch.float64)[None], values.numel())


class GaussianCRPS(Metric):
    """Mean CRPS over samples and pixels, as `crps`."""

    names = ("crps",)

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        return _mean_totals(corrected_crps(*promote_pair(prediction, target)))


class EECRPS(Metric):
    """Extreme event weighted CRPS, the mean of `|EFI| * CRPS`, as `eecrps`.

    Dates without an EFI, whose map is NaN throughout, do not count; NaN at some pixels of a map
    makes the score NaN. If no date has one the score is NaN.
    """

    names = ("eecrps",)

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        prediction, target = promote_pair(prediction, target)
        weighted = target[:, 3].abs() * corrected_crps(prediction, target)
        return _mean_totals(weighted[has_efi(target)])

    def values(self, totals: Tensor) -> dict[str, float]:
        return dict.fromkeys(self.names, math.nan) if float(totals[0, -1]) == 0.0 else super().values(totals)


def has_efi(target: Tensor) -> Tensor:
    """Whether each sample of a target `(B, 4, H, W)` has an EFI at one pixel at least, `(B,)`."""
    efi = target[:, 3]
    return ~efi.isnan().all(dim=(1, 2)) if efi.numel() else torch.zeros(len(efi), dtype=torch.bool)
