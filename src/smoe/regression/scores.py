"""Scores of a regressor beside simple predictions, with the spread over times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from smoe.errors import printable

MODEL = "model"
"""Name of the net that predicts, in a table."""
_NUM_RESAMPLES = 200


@dataclass
class ErrorSums:
    """Errors of one predictor: for each sample and target the area-weighted means."""

    squared: list[np.ndarray] = field(default_factory=list)
    absolute: list[np.ndarray] = field(default_factory=list)
    objective: list[np.ndarray] = field(default_factory=list)

    def add(self, prediction: np.ndarray, target: np.ndarray, weights: np.ndarray) -> None:
        """Adds a batch of predictions `(N, K, H, W)`; pixels whose target is NaN do not count."""
        error = prediction.astype(np.float64) - target
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
        period: What was scored, in words.
        notes: What must be said of the model and of the period.
    """

    targets: tuple[str, ...]
    units: tuple[str, ...]
    num_samples: int
    rmse: Mapping[str, tuple[float, ...]]
    rmse_spread: Mapping[str, tuple[float, ...]]
    mae: Mapping[str, tuple[float, ...]]
    objective: tuple[str, Mapping[str, tuple[float, ...]]] | None = None
    period: str = ""
    notes: tuple[str, ...] = ()

    def value(self, predictor: str, target: str | None = None, metric: str = "rmse") -> float:
        """One number, such as `table.value("model", "t2m")`."""
        which = {"rmse": self.rmse, "rmse_spread": self.rmse_spread, "mae": self.mae}[metric]
        return which[predictor][0 if target is None else self.targets.index(target)]

    def __str__(self) -> str:
        """A table, best first, with the model marked by `*`, and the notes."""
        lines = []
        for number, (target, units) in enumerate(zip(self.targets, self.units, strict=True)):
            of_period = f" of {self.period}" if self.period else ""
            lines.append(printable(f"{target} ({units or 'no units'}), {self.num_samples} times{of_period}"))
            head = f"  {'':34}{'RMSE':>10}{'±':>9}{'MAE':>10}"
            name, values = self.objective if self.objective is not None else ("", {})
            lines.append(head + (f"{name:>12}" if name else ""))
            for predictor in ranked(self.rmse, number):
                mark = "*" if predictor == MODEL else " "
                errors = (each[predictor][number] for each in (self.rmse, self.rmse_spread, self.mae))
                line = "{} {:34}{:10.4g}{:9.2g}{:10.4g}".format(mark, predictor, *errors)
                lines.append(line + (f"{values[predictor][number]:12.4g}" if predictor in values else ""))
        return "\n".join([*lines, *(f"note: {printable(note)}" for note in self.notes)])

    def to_plain(self) -> dict[str, object]:
        """What JSON keeps; numbers that are not finite are None."""
        return without_nan({
            "targets": list(self.targets),
            "units": list(self.units),
            "num_samples": self.num_samples,
            "rmse": {name: list(values) for name, values in self.rmse.items()},
            "rmse_spread": {name: list(values) for name, values in self.rmse_spread.items()},
            "mae": {name: list(values) for name, values in self.mae.items()},
            "objective": None
            if self.objective is None
            else [self.objective[0], {name: list(values) for name, values in self.objective[1].items()}],
            "scored": self.period,
            "notes": list(self.notes),
        })  # fmt: skip


def ranked(values: Mapping[str, Sequence[float | None]], number: int = 0) -> list[str]:
    """Names of predictors by one of their errors, the best first; those without a finite one are the last."""
    errors = {name: each[number] for name, each in values.items()}
    return sorted(errors, key=lambda name: math.inf if (error := errors[name]) is None or math.isnan(error) else error)


def without_nan(value: Any) -> Any:
    """JSON has no NaN and no infinity; they are written as null."""
    if isinstance(value, dict):
        return {str(key): without_nan(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def make_table(
    sums: Mapping[str, ErrorSums],
    targets: tuple[str, ...],
    units: tuple[str, ...],
    objective: str | None,
    seed: int = 0,
    *,
    period: str = "",
    notes: tuple[str, ...] = (),
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
    if not np.isfinite(list(rmse.values())).all():
        names = ", ".join(name for name, each in rmse.items() if not np.isfinite(each).all())
        notes = (*notes, f"errors that are not finite: {names}")
    chosen = None if objective is None else (objective, values)
    return ScoreTable(targets, units, num_samples, rmse, spread, mae, chosen, period, notes)


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
    with np.errstate(invalid="ignore"):
        # Of errors that are infinite there is none.
        return roots.std(axis=0)
