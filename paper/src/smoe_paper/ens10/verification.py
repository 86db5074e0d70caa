"""Calibration and error maps of a run and of the raw ensemble over a split, for the pictures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from smoe.training.metrics import MetricSums
from smoe_paper.ens10.data.store import EnsembleStore
from smoe_paper.ens10.scored_samples import ScoredSamples
from smoe_paper.experiments.open_run import OpenRun
from smoe_paper.losses import corrected_crps, gaussian_correction
from smoe_paper.probabilistic_metrics import PitHistogram

NUM_PARTS = 20
"""Number of equally probable parts of a distribution in the histogram and the reliability diagram."""
_NUM_SPREADS = 10
_SOME_DATES = 20


@dataclass(frozen=True)
class Verification:
    """Quality of the normal distributions of a split.

    Attributes:
        crps: Mean over the forecasts at each pixel, `(H, W)`, in the units of the data.
        parts: Share of the truths in each of `NUM_PARTS` equally probable parts; equal shares if calibrated.
        spread: Root of the mean variance of the pixels in each class of the raw ensemble's spread, in ascending order.
        error: Root mean squared error of the mean in the same classes.
    """

    crps: np.ndarray
    parts: np.ndarray
    spread: np.ndarray
    error: np.ndarray


class _Sums:
    def __init__(self, shape: tuple[int, int], edges: Tensor) -> None:
        self._crps, self._count = torch.zeros(shape, dtype=torch.float64), 0
        self._parts = MetricSums([PitHistogram(NUM_PARTS)])
        self._edges = edges
        self._classes = torch.zeros(3, len(edges) + 1, dtype=torch.float64)

    def add(self, output: Tensor, target: Tensor) -> None:
        shift, std = gaussian_correction(output, target[:, 2])
        error = target[:, 0] - target[:, 1] - shift
        self._crps += corrected_crps(output, target).sum(dim=0, dtype=torch.float64)
        self._count += len(target)
        self._parts.add(output, target)
        class_of = torch.bucketize(target[:, 2].contiguous(), self._edges).flatten()
        for row, values in enumerate((std.square(), error.square(), torch.ones_like(error))):
            self._classes[row].index_add_(0, class_of, values.double().flatten())

    def result(self) -> Verification:
        variance, squared_error, count = self._classes
        filled = count > 0
        spread, error = ((sums[filled] / count[filled]).sqrt().numpy() for sums in (variance, squared_error))
        parts = np.array(list(self._parts.values().values()))
        return Verification((self._crps / self._count).numpy(), parts, spread, error)


def verify(run: OpenRun, split: str) -> tuple[Verification, Verification]:
    """Verifies the raw ensemble and the run's correction in one pass over a split.

    Args:
        run: Run, opened with the split.
        split: Split to verify, such as `test`.
    """
    store = store_of(run, split)
    edges = torch.from_numpy(_spread_edges(store))
    raw, corrected = _Sums(store.grid.shape, edges), _Sums(store.grid.shape, edges)
    for output, target in run.predict(split):
        output, target = output.float().cpu(), target.cpu()
        corrected.add(output, target)
        raw.add(torch.zeros_like(output), target)
    return raw.result(), corrected.result()


def store_of(run: OpenRun, split: str) -> EnsembleStore:
    """Returns the store of a split of a run."""
    samples = run.task.splits[split]
    inner = samples.samples if isinstance(samples, ScoredSamples) else samples
    return inner.store  # type: ignore[attr-defined]


def _spread_edges(store: EnsembleStore) -> np.ndarray:
    """Returns borders between classes of the ensemble's spread with equal numbers of pixels, from some of the dates."""
    some = np.unique(np.linspace(0, len(store.dates) - 1, _SOME_DATES).round().astype(int))
    values = np.concatenate([np.asarray(store.target_std[row]).ravel() for row in some])
    return np.quantile(values, np.linspace(0, 1, _NUM_SPREADS + 1)[1:-1]).astype(np.float32)
