"""Scores of a regressor beside simple predictions, with the spread over times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

_NUM_RESAMPLES = 200


@dataclass
class ErrorSums:
    """Errors of one predictor: for each sample and target the area-weighted means."""

    squared: list[np.ndarray] = field(default_factory=list)
    absolute: list[np.ndarray] = field(default_factory=list)
    objective: list[np.ndarray] = field(default_factory=list)

    def add(self, prediction: np.ndarray, target: np.ndarray, weights: np.ndarray) -> None:
        """Adds a batch of predictions `(N, K, H, W)`; pixels whose target is NaN do not count."""
        error = prediction - target
        self.squared.append(weighted_means(np.square(error), target, weights))
        self.absolute.append(weighted_means(np.abs(error), target, weights))


def weighted_means(errors: np.ndarray, target: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted mean over the pixels of each sample and target, `(N, K)`; NaN where no pixel has a value."""
    counts = ~np.isnan(target) * weights
    totals = counts.sum(axis=(2, 3), dtype=np.float64)
    sums = (np.where(counts > 0, errors, 0.0) * counts).sum(axis=(2, 3), dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(totals > 0, sums / totals, np.nan)


@dataclass(frozen=True)
class ScoreTable:
    """Errors of predictors in the units of the targets.

    Attributes:
        targets: Names of the targets.
        units: Their units.
        num_samples: Number of times.
        rmse: Root of the mean squared error of each target, by predictor.
        rmse_spread: Standard deviation of the same over a bootstrap of blocks of times.
        mae: Mean absolute error, by predictor.
        objective: Value of the objective where it is another one: its name, and its values by predictor.
        note: What must be said of the model; None if there is nothing.
    """

    targets: tuple[str, ...]
    units: tuple[str, ...]
    num_samples: int
    rmse: Mapping[str, tuple[float, ...]]
    rmse_spread: Mapping[str, tuple[float, ...]]
    mae: Mapping[str, tuple[float, ...]]
    objective: tuple[str, Mapping[str, tuple[float, ...]]] | None = None
    note: str | None = None

    def value(self, predictor: str, target: str | None = None, metric: str = "rmse") -> float:
        """One number, such as `table.value("model", "t2m")`."""
        which = {"rmse": self.rmse, "rmse_spread": self.rmse_spread, "mae": self.mae}[metric]
        return which[predictor][0 if target is None else self.targets.index(target)]

    def __str__(self) -> str:
        """A table, best first, and the note."""
        lines = []
        for number, (target, units) in enumerate(zip(self.targets, self.units, strict=True)):
            lines.append(f"{target} ({units or 'no units'}), {self.num_samples} times")
            head = f"  {'':34}{'RMSE':>10}{'±':>9}{'MAE':>10}"
            name, values = self.objective if self.objective is not None else ("", {})
            lines.append(head + (f"{name:>12}" if name else ""))
            for predictor in sorted(self.rmse, key=lambda each: self.rmse[each][number]):
                line = f"  {predictor:34}{self.rmse[predictor][number]:10.4g}{self.rmse_spread[predictor][number]:9.2g}"
                line += f"{self.mae[predictor][number]:10.4g}"
                lines.append(line + (f"{values[predictor][number]:12.4g}" if predictor in values else ""))
        if self.note is not None:
            lines.append(f"note: {self.note}")
        return "\n".join(lines)

    def to_plain(self) -> dict[str, object]:
        """What JSON keeps."""
        return {
            "targets": list(self.targets),
            "units": list(self.units),
            "num_samples": self.num_samples,
            "rmse": {name: list(values) for name, values in self.rmse.items()},
            "rmse_spread": {name: list(values) for name, values in self.rmse_spread.items()},
            "mae": {name: list(values) for name, values in self.mae.items()},
            "objective": None
            if self.objective is None
            else [self.objective[0], {name: list(values) for name, values in self.objective[1].items()}],
            "note": self.note,
        }


def make_table(
    sums: Mapping[str, ErrorSums],
    targets: tuple[str, ...],
    units: tuple[str, ...],
    objective: str | None,
    seed: int = 0,
    *,
    note: str | None = None,
) -> ScoreTable:
    """Reduces the errors of all samples: the mean over times is inside of the root."""
    rmse, spread, mae, values = {}, {}, {}, {}
    num_samples = 0
    for name, each in sums.items():
        squared, absolute = np.concatenate(each.squared), np.concatenate(each.absolute)
        num_samples = len(squared)
        rmse[name] = tuple(float(value) for value in np.sqrt(np.nanmean(squared, axis=0)))
        mae[name] = tuple(float(value) for value in np.nanmean(absolute, axis=0))
        spread[name] = tuple(float(value) for value in bootstrap_spread(squared, seed))
        if each.objective:
            values[name] = tuple(float(value) for value in np.nanmean(np.concatenate(each.objective), axis=0))
    return ScoreTable(
        targets, units, num_samples, rmse, spread, mae, None if objective is None else (objective, values), note
    )


def bootstrap_spread(squared: np.ndarray, seed: int = 0) -> np.ndarray:
    """Standard deviation of the root mean squared error over resampled blocks of consecutive times.

    Blocks, because neighbouring times err alike: a bootstrap of single times would be too sure.

    Args:
        squared: Mean squared error of each time and target, `(N, K)`.
        seed: Seed of the resampling.
    """
    count = len(squared)
    length = max(1, math.isqrt(count))
    generator = np.random.default_rng(seed)
    num_blocks = -(-count // length)
    roots = np.empty((_NUM_RESAMPLES, squared.shape[1]))
    for resample in range(_NUM_RESAMPLES):
        firsts = generator.integers(0, count, num_blocks)
        rows = (firsts[:, None] + np.arange(length)).ravel()[:count] % count
        roots[resample] = np.sqrt(np.nanmean(squared[rows], axis=0))
    return roots.std(axis=0)
