"""Scores of a run beside those of simple predictions and of the paper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from smoe.training.run_directory import Record


@dataclass(frozen=True)
class ScoreRow:
    """The scores of one prediction.

    Attributes:
        name: Name of the prediction.
        source: Where the scores come from, such as `this run` or `Table 3`.
        values: Scores by metric.
        spreads: Standard deviations of some of them.
        is_own: Whether it is the run that the report is about.
        is_published: Whether a publication prints the scores.
        is_same_recipe: Whether they are published for the recipe of the run.
    """

    name: str
    source: str
    values: Mapping[str, float]
    spreads: Mapping[str, float] = field(default_factory=dict)
    is_own: bool = False
    is_published: bool = False
    is_same_recipe: bool = False


@dataclass(frozen=True)
class ScoreSheet:
    """Scores on one split.

    Attributes:
        split: Name of the split, or words such as `validation, epoch 3`.
        rows: Predictions, that of the run first.
        units: Units of some of the metrics.
    """

    split: str
    rows: tuple[ScoreRow, ...]
    units: Mapping[str, str] = field(default_factory=dict)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics of any row, those of the run first; parts of a metric, such as `error/class_3`, are left out."""
        names = dict.fromkeys(name for row in self.rows for name in row.values)
        return tuple(name for name in names if "/" not in name)

    @property
    def parts(self) -> dict[str, float]:
        """Scores of the run for parts of the data, such as `within_1_percent/region_0`."""
        own = next((row for row in self.rows if row.is_own), None)
        return {} if own is None else {name: value for name, value in own.values.items() if "/" in name}


def run_scores(history: Sequence[Record]) -> tuple[str, dict[str, float]]:
    """Returns what the record of a run states: its scores on the test split, or its last ones on validation.

    Args:
        history: Records of the run.

    Returns:
        The split in words and the scores; no scores if no epoch has ended.
    """
    for record in reversed(history):
        found = _scores_of(record, "test/")
        if found:
            return "test", found
    for record in reversed(history):
        found = _scores_of(record, "validation/")
        if found:
            return f"validation, epoch {record.get('epoch', '?')}", found
    return "", {}


def _scores_of(record: Record, prefix: str) -> dict[str, float]:
    return {
        key.removeprefix(prefix): float(value)
        for key, value in record.items()
        if key.startswith(prefix) and isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def show_number(value: float | None) -> str:
    """A number with four or five digits; an empty text for None."""
    if value is None:
        return ""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3e}"
    return (
        f"{value:.0f}"
        if abs(value) >= 10_000
        else f"{value:.4f}".rstrip("0").rstrip(".")
        if abs(value) < 100
        else (f"{value:.2f}".rstrip("0").rstrip("."))
    )
