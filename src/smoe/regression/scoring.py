"""Scores samples by the model, the plain net and simple predictions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from smoe.errors import DataError
from smoe.gridded.field_source import FieldSource
from smoe.gridded.open_fields import open_fields
from smoe.gridded.periods import parse_period, samples_in
from smoe.gridded.time_labels import TimeLabels
from smoe.gridded.units import are_same_units
from smoe.losses.crps import gaussian_crps
from smoe.regression.fitted import Fitted, check_inputs
from smoe.regression.prediction import central, find_gaps, predict_values, read_inputs
from smoe.regression.preparation import lead_channel, pair_sources
from smoe.regression.scores import ErrorSums, ScoreTable, make_table, weighted_means

_BATCH = 32


PLAIN = "plain net of the same size"
NOT_KEPT = "SMoE net, not kept"


@dataclass(frozen=True)
class ComparedBatch:
    """Truths of some samples and what is predicted for them.

    Attributes:
        truth: Truths in the units of the targets, `(N, K, H, W)`; NaN where they have no value.
        nets: Predictions `(N, K, n, H, W)` of the `model`, and of the net that was fitted beside it, if there is one:
            the plain net, or the SMoE net where the plain net is the model.
        simple: Simple predictions by their names, `(N, K, H, W)`.
    """

    truth: np.ndarray
    nets: dict[str, np.ndarray]
    simple: dict[str, np.ndarray]


def compare_batches(fitted: Fitted, x: Any, y: Any, period: Any = None) -> Iterator[ComparedBatch]:
    """Yields all samples that inputs and targets make, or those in a period, with predictions for them.

    Samples with gaps are left out if the model was fitted to drop them.

    Raises:
        DataError: If inputs or targets are not those of the model, or no sample lies in the period.
    """
    inputs = check_inputs(fitted, open_fields(x, "inputs", fitted.options.location))
    targets = _check_targets(fitted, y)
    pairs = pair_sources(inputs, targets, fitted.options)
    if period is not None:
        first, last = int(pairs.starts.min()), int(pairs.valid.max())
        chosen = samples_in(pairs.starts, pairs.valid, parse_period(period, pairs.calendar, first, last))
        if not chosen.any():
            raise DataError(f"no sample lies in the period {period}")
        pairs = pairs.select(chosen)
    statistics = fitted.statistics
    months = TimeLabels(pairs.valid, pairs.calendar).months(pairs.valid) % 12
    leads = lead_channel(pairs.inputs, inputs.lead_times, fitted.lead_scale)
    is_forecast = inputs.lead_times is not None or (fitted.options.lead is None)
    drops = fitted.options.missing == "drop"
    for first in range(0, len(pairs), _BATCH):
        chosen = slice(first, first + _BATCH)
        before = read_inputs(fitted, inputs, pairs.inputs[chosen], allow_gaps=drops)
        truth = targets.read(pairs.targets[chosen])
        is_gap = np.isnan(truth) & statistics.target_mask
        truth[:, ~statistics.target_mask] = np.nan
        lead, month = None if leads is None else leads[chosen], months[chosen]
        if drops:
            kept = ~(find_gaps(fitted, before).any(axis=(1, 2, 3)) | is_gap.any(axis=(1, 2, 3)))
            before, truth, month = before[kept], truth[kept], month[kept]
            lead = None if lead is None else lead[kept]
        if not len(before):
            continue
        nets = {"model": fitted.predictor}
        if fitted.plain is not None:
            nets |= {f"{fitted.net_kind}, not kept": fitted.net} if fitted.keeps_plain else {PLAIN: fitted.plain}
        yield ComparedBatch(
            truth,
            {name: predict_values(fitted, net, before, lead) for name, net in nets.items()},
            _simple_predictions(fitted, before, month, is_forecast=is_forecast),
        )


def score_samples(fitted: Fitted, x: Any, y: Any, period: Any = None) -> ScoreTable:
    """Scores of all samples that inputs and targets make, or of those in a period.

    Raises:
        DataError: If inputs or targets are not those of the model, or no sample is left.
    """
    sums: dict[str, ErrorSums] = {}
    for batch in compare_batches(fitted, x, y, period):
        for name, values in batch.nets.items():
            each = sums.setdefault(name, ErrorSums())
            each.add(central(fitted, values), batch.truth, fitted.pixel_weights)
            probabilistic = _objective_errors(fitted, values, batch.truth)
            if probabilistic is not None:
                each.objective.append(weighted_means(probabilistic, batch.truth, fitted.pixel_weights))
        for name, prediction in batch.simple.items():
            sums.setdefault(name, ErrorSums()).add(prediction, batch.truth, fitted.pixel_weights)
    if not sums:
        raise DataError("every sample has missing values, which the model was fitted to drop")
    objective = {"gaussian": "CRPS", "quantiles": "pinball"}.get(fitted.options.objective)
    names = tuple(channel.name for channel in fitted.target_channels)
    units = tuple(channel.units for channel in fitted.target_channels)
    return make_table(sums, names, units, objective, note=fitted.note())


def _simple_predictions(
    fitted: Fitted, inputs: np.ndarray, months: np.ndarray, *, is_forecast: bool
) -> dict[str, np.ndarray]:
    statistics = fitted.statistics
    climatology = statistics.climatology
    is_monthly = len(climatology) > 1
    found = {
        f"climatology ({'monthly' if is_monthly else 'mean'})": climatology[months]
        if is_monthly
        else np.repeat(climatology, len(inputs), axis=0)
    }
    if (statistics.reference >= 0).all():
        references = statistics.references(inputs)
        found["raw input" if is_forecast else "persistence"] = references
        found["input + map of mean errors"] = references + statistics.mean_error
    return found


def _objective_errors(fitted: Fitted, values: np.ndarray, truth: np.ndarray) -> np.ndarray | None:
    if fitted.options.objective == "gaussian":
        mean, std = (torch.from_numpy(np.ascontiguousarray(values[:, :, part])) for part in (0, 1))
        return gaussian_crps(mean, std, torch.from_numpy(truth)).numpy()
    if fitted.options.objective == "quantiles":
        levels = np.asarray(fitted.options.quantiles, np.float32)[:, None, None]
        below = truth[:, :, None] - values
        return np.maximum(levels * below, (levels - 1.0) * below).mean(axis=2)
    return None


def _check_targets(fitted: Fitted, y: Any) -> FieldSource:
    dataset = open_fields(y, "targets", fitted.options.location)
    variables = list(dict.fromkeys(channel.variable for channel in fitted.target_channels))
    targets = FieldSource(dataset, variables, "targets")
    ours = [(channel.name, channel.units) for channel in fitted.target_channels]
    theirs = [(channel.name, channel.units) for channel in targets.channels]
    if [name for name, _ in ours] != [name for name, _ in theirs] or not all(
        are_same_units(one[1], other[1]) for one, other in zip(ours, theirs, strict=True)
    ):
        raise DataError(f"the targets are {_list(theirs)}, the model predicts {_list(ours)}: convert them")
    if targets.labels is None:
        raise DataError("the targets have no time dimension")
    difference = targets.grid.difference(fitted.grid)
    if difference is not None:
        raise DataError(f"the targets are on another grid than the model, {difference}")
    return targets


def _list(channels: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name} in {units or '(no units)'}" for name, units in channels)
