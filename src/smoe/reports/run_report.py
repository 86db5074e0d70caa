"""What a report states about one run: its scores beside those of others, its records, its routing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from smoe._maps import Places
from smoe.diagnostics import RoutingGain
from smoe.errors import DataError
from smoe.reports.gate_maps import GateMap
from smoe.training.run_directory import Record


@dataclass(frozen=True)
class ScoreRow:
    """The scores of one prediction."""

    name: str
    source: str  # where the scores come from, such as `this run` or `Table 3`
    values: Mapping[str, float]  # scores by metric
    spreads: Mapping[str, float] = field(default_factory=dict)  # standard deviations of some of them
    is_own: bool = False  # whether it is the run that the report is about
    is_published: bool = False  # whether a publication prints the scores
    is_same_recipe: bool = False  # whether they are published for the recipe of the run
    is_part: bool = False  # whether it is a net that the run may have a part of, so no rival
    gap_spreads: Mapping[str, float] = field(default_factory=dict)  # of differences to the best simple model


@dataclass(frozen=True)
class ScoreSheet:
    """Scores on one split."""

    split: str  # name of the split, or words such as `validation, epoch 3`
    rows: tuple[ScoreRow, ...]  # predictions, that of the run first
    units: Mapping[str, str] = field(default_factory=dict)  # units of some of the metrics

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics of any row, those of the run first; parts of a metric, such as `error/class_3`, are left out."""
        names = dict.fromkeys(name for row in self.rows for name in row.values)
        return tuple(name for name in names if "/" not in name)

    def metrics_of(self, rows: Sequence[ScoreRow]) -> list[str]:
        return [metric for metric in self.metrics if any(metric in row.values for row in rows)]

    @property
    def parts(self) -> dict[str, float]:
        """Scores of the run for parts of the data, such as `within_1_percent/region_0`."""
        own = next((row for row in self.rows if row.is_own), None)
        return {} if own is None else {name: value for name, value in own.values.items() if "/" in name}


def show_number(value: float | None) -> str:
    """A number with four or five digits; an empty text for None."""
    if value is None:
        return ""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3e}"
    digits = 4 if abs(value) < 100 else 2 if abs(value) < 10_000 else 0
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text


@dataclass(frozen=True)
class ErrorMap:
    """An error at each pixel, over the samples of a split."""

    name: str  # name of the target and of the error, such as `Z500, RMSE`
    units: str
    values: np.ndarray  # error at each pixel, `(P,)` or in the shape of the grid; NaN where there is none
    # The same error of other predictions by their names, such as a net without experts, and persistence.
    others: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Example:
    """One sample."""

    name: str  # such as its time
    units: str  # units of truth and prediction
    input: tuple[str, str, np.ndarray]  # name and units of an input, and its values
    truth: np.ndarray  # truth at each pixel, in the shape of the grid; NaN where there is none
    prediction: np.ndarray


@dataclass(frozen=True)
class Breakdown:
    """Numbers of several predictions by something, such as errors by month, or shares of truths by quantile."""

    name: str  # such as `t2m, RMSE by month`
    by: str  # such as `month`
    steps: tuple[float, ...]  # such as the numbers of the months
    values: Mapping[str, Sequence[float]]  # a number for each step, by prediction
    unit: str = ""
    labels: tuple[str, ...] = ()  # names of the steps 0, 1, ...


@dataclass(frozen=True)
class Monitor:
    """The score that decides which weights are kept."""

    key: str  # name in the records, such as `validation/loss`
    is_best_high: bool = False  # whether the highest value is the best one


@dataclass(frozen=True)
class RunReport:
    label: str  # name of the run on the page, from its directory
    title: str  # recipe, or network and targets
    path: Path
    seed: int
    num_parameters: int
    is_plain: bool  # whether the network has no experts
    checkpoint: str  # weights that are shown, in words
    scores: ScoreSheet  # scores beside simple predictions and the paper's
    history: Sequence[Record]
    monitor: Monitor  # the score that decides which weights are kept
    places: Places | None  # where the pixels of the data lie
    gates: tuple[GateMap, ...]
    regions: np.ndarray | None  # number of the known region of each pixel, `(P,)`; None if there are none
    error_maps: tuple[ErrorMap, ...]  # errors at each pixel
    filters: Mapping[str, np.ndarray]  # filters that the experts should find
    command: str  # command that makes the run again; empty if it is not known
    recipe: Mapping[str, Any]  # every field of the recipe, nested
    facts: Mapping[str, str]  # versions, machine and data, by their names
    remarks: tuple[str, ...] = ()  # sentences that a reader of the scores needs
    plain_history: Sequence[Record] = ()  # records of the plain net that was trained beside it
    examples: tuple[Example, ...] = ()  # samples with what is predicted for them, in the order of time
    breakdowns: tuple[Breakdown, ...] = ()  # errors by month and hour
    reliability: tuple[Breakdown, ...] = ()  # how often quantiles are not exceeded
    identity: str = field(default="", repr=False)  # what was learned from which data

    @property
    def epochs(self) -> list[Record]:
        return epochs_of(self.history)

    @property
    def seconds(self) -> float | None:
        return seconds_of(self.history)

    @property
    def ending(self) -> str:
        reason = next((record["stopped"] for record in reversed(self.history) if "stopped" in record), None)
        return "it has not ended" if reason is None else str(reason)

    @property
    def routing_gains(self) -> list[RoutingGain]:
        """What the routing of each layer was worth at the end of the training; the last one is of all of them."""
        found = next((record["routing_gains"] for record in reversed(self.history) if "routing_gains" in record), [])
        try:
            return [RoutingGain.from_record(record) for record in found]
        except (TypeError, KeyError) as error:
            raise DataError(f"{self.path}: its record of routing_gains is damaged ({error})") from error


def plain_name(metric: str) -> str:
    return metric.replace("_", " ")


def headline(report: RunReport) -> str:
    """Returns what was learned, how much better it is than the best rival of the table, and how sure."""
    own = next((row for row in report.scores.rows if row.is_own), None)
    rivals = [row for row in report.scores.rows if not (row.is_own or row.is_published or row.is_part)]
    # A score that rivals have, too.
    shared = report.scores.metrics_of(rivals) or report.scores.metrics
    metric = next((metric for metric in shared if own is not None and metric in own.values), None)
    if own is None or metric is None:
        return ""
    unit = report.scores.units.get(metric, "")

    def shown(row: ScoreRow) -> str:
        spread = row.spreads.get(metric)
        return f"{row.values[metric]:.4g}{f' ± {spread:.2g}' if spread else ''} {unit}".strip()

    is_share, name = unit.startswith("%"), plain_name(metric)
    text = f"{report.title}: {f'{shown(own)} {name}' if is_share else f'{name} {shown(own)}'}"
    text += f" on the {report.scores.split.partition(', ')[0]} split"
    is_high = report.monitor.is_best_high and report.monitor.key.rpartition("/")[2] == metric
    is_error = not is_high and any(word in metric.lower() for word in ("rmse", "mae", "mse", "loss", "crps", "error"))
    rows = sorted(
        (row for row in report.scores.rows if metric in row.values), key=lambda row: row.values[metric], reverse=is_high
    )
    rivals, parts = [row for row in rows if row in rivals], [row for row in rows if row.is_part]
    if rivals and (is_high or is_error):
        best, ours, theirs = rivals[0], own.values[metric], rivals[0].values[metric]
        gap = abs(ours - theirs)
        share = f"{gap:.4g}{' points' * is_share}" if is_high or not theirs else f"{100 * gap / theirs:.3g} %"
        verdict = f"{share} {'more' if ours > theirs else 'less'} than"
        spread = max(own.spreads.get(metric, 0.0), best.spreads.get(metric, 0.0))
        if gap < 2 * (spread if metric in best.gap_spreads else own.gap_spreads.get(metric, spread)):
            verdict = "not clearly different from"
        text += f", {verdict} the best rival, {best.name} ({shown(best)})"
    if is_error and parts and parts[0].values[metric] < 0.99 * own.values[metric]:
        text += f"; better in hindsight is a part of the fit, {parts[0].name} ({shown(parts[0])})"
    gains = report.routing_gains
    return f"{text}." + (f" Compared with the best single convolutions, {gains[-1].verdict}." if gains else "")


def epochs_of(history: Sequence[Record]) -> list[Record]:
    """Returns the records of epochs; the record of the end of a run is left out."""
    return [record for record in history if "stopped" not in record and "total_seconds" not in record]


def seconds_of(history: Sequence[Record]) -> float | None:
    """Returns the seconds of training; None if they were not recorded."""
    total = next((record["total_seconds"] for record in reversed(history) if "total_seconds" in record), None)
    if isinstance(total, (int, float)):
        return float(total)
    parts = [record["seconds"] for record in epochs_of(history) if isinstance(record.get("seconds"), (int, float))]
    return float(sum(parts)) if parts else None
