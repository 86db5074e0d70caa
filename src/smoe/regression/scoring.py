"""Scores samples by the model, the plain net and simple predictions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from smoe.errors import DataError, printable
from smoe.gridded._alignment import Pairs, Period, parse_period, remaining_samples, samples_in
from smoe.gridded._axes import are_same_units
from smoe.gridded._open_fields import open_fields
from smoe.gridded._source import FieldSource
from smoe.losses import gaussian_crps
from smoe.regression.fitted import Fitted, open_inputs
from smoe.regression.prediction import central, find_gaps, predict_values, read_inputs
from smoe.regression.preparation import lead_channel, pair_sources
from smoe.regression.samples import GridSamples
from smoe.regression.scores import MODEL, ErrorSums, ScoreTable, make_table, weighted_means

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


@dataclass(frozen=True)
class Scored:
    """Samples to score.

    Attributes:
        inputs: Source of the inputs.
        targets: Source of the targets.
        pairs: The samples.
        period: What they are, in words.
        notes: What must be said of them.
    """

    inputs: FieldSource
    targets: FieldSource
    pairs: Pairs
    period: str
    notes: tuple[str, ...]


def open_scored(fitted: Fitted, x: Any, y: Any, period: Any = None) -> Scored:
    """Opens the samples of a period; without one, those of the test period if there are any, else all.

    Raises:
        DataError: If inputs or targets are not those of the model, or no sample lies in the period.
    """
    inputs = open_inputs(fitted, x)
    targets = _check_targets(fitted, y)
    pairs = pair_sources(inputs, targets, fitted.options)
    whole = Period(int(pairs.starts.min()), int(pairs.valid.max()) + 1, pairs.calendar)
    which = ""
    if period is None and "test" in fitted.bounds:
        # Data of other times than those of the fit have no sample there.
        test = fitted.period_of("test")
        period = test if samples_in(pairs.starts, pairs.valid, test).any() else None
    found = whole if period is None else parse_period(period, pairs.calendar, whole.start, whole.stop - 1)
    chosen = samples_in(pairs.starts, pairs.valid, found)
    if not chosen.any():
        raise DataError(f"no sample lies in the period {period}")
    pairs = pairs.select(chosen)
    for name in fitted.bounds:
        which = f"the {name} period, " if fitted.period_of(name) == found else which
    return Scored(inputs, targets, pairs, f"{which}{found}", _optimism(fitted, pairs))


def _optimism(fitted: Fitted, pairs: Pairs) -> tuple[str, ...]:
    """Notes on samples that the fit has seen."""
    others = {name: fitted.period_of(name) for name in fitted.bounds if name != "train"}
    is_train = remaining_samples(pairs.starts, pairs.valid, others)
    is_train &= samples_in(pairs.starts, pairs.valid, Period(*fitted.trained, fitted.calendar))
    is_validation = samples_in(pairs.starts, pairs.valid, fitted.period_of("validation"))
    chose = " and chose the net" if fitted.plain is not None else ""
    notes = []
    if is_train.any():
        notes.append(
            f"{int(is_train.sum())} of the {len(pairs)} times are of the training: these scores are optimistic"
        )
    if is_validation.any():
        notes.append(
            f"{int(is_validation.sum())} of the {len(pairs)} times are of the validation period, which stopped the "
            f"training{chose}: these scores are optimistic, keep a test period out"
        )
    return tuple(notes)


def compare_batches(fitted: Fitted, scored: Scored) -> Iterator[ComparedBatch]:
    """Yields samples with predictions for them; those with gaps are left out if the model was fitted to drop them."""
    inputs, targets, pairs = scored.inputs, scored.targets, scored.pairs
    statistics = fitted.statistics
    leads = lead_channel(pairs.inputs, inputs.lead_times, fitted.lead_scale)
    drops = fitted.options.missing == "drop"
    for first in range(0, len(pairs), _BATCH):
        chosen = slice(first, first + _BATCH)
        before = read_inputs(fitted, inputs, pairs.inputs[chosen], allow_gaps=drops)
        truth = targets.read(pairs.targets[chosen])
        is_gap = np.isnan(truth) & statistics.target_mask
        truth[:, ~statistics.target_mask] = np.nan
        lead, valid = None if leads is None else leads[chosen], pairs.valid[chosen]
        if drops:
            kept = ~(find_gaps(fitted, before).any(axis=(1, 2, 3)) | is_gap.any(axis=(1, 2, 3)))
            before, truth, valid = before[kept], truth[kept], valid[kept]
            lead = None if lead is None else lead[kept]
        if not len(before):
            continue
        nets = {MODEL: fitted.predictor}
        if fitted.plain is not None:
            nets |= {f"{fitted.net_kind}, not kept": fitted.net} if fitted.keeps_plain else {PLAIN: fitted.plain}
        yield ComparedBatch(
            truth,
            {name: predict_values(fitted, net, before, lead) for name, net in nets.items()},
            _simple_predictions(fitted, before, valid, is_forecast=inputs.lead_times is not None),
        )


def score_samples(fitted: Fitted, x: Any, y: Any, period: Any = None) -> ScoreTable:
    """Scores of the samples that `open_scored` chooses.

    Raises:
        DataError: If inputs or targets are not those of the model, or no sample is left.
    """
    sums: dict[str, ErrorSums] = {}
    scored = open_scored(fitted, x, y, period)
    for batch in compare_batches(fitted, scored):
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
    notes = (*scored.notes, *fitted.remarks())
    return make_table(sums, names, units, objective, period=scored.period, notes=notes)


def find_weakness(fitted: Fitted, samples: GridSamples, *, is_forecast: bool) -> str | None:
    """What must be said of a model that a simple prediction beats on samples that were prepared for it.

    Args:
        fitted: Fitted regressor.
        samples: Samples of the validation period.
        is_forecast: Whether the inputs are forecasts with lead times.
    """
    sums: dict[str, ErrorSums] = {}
    for first in range(0, len(samples), _BATCH):
        indices = range(first, min(first + _BATCH, len(samples)))
        before, truth = samples.physical(indices)
        leads = None if samples.lead_channel is None else samples.lead_channel[first : indices.stop]
        valid = samples.pairs.valid[first : indices.stop]
        found = _simple_predictions(fitted, before, valid, is_forecast=is_forecast)
        found[MODEL] = central(fitted, predict_values(fitted, fitted.predictor, before, leads))
        for name, prediction in found.items():
            sums.setdefault(name, ErrorSums()).add(prediction, truth, fitted.pixel_weights)
    is_absolute = fitted.options.objective in ("mae", "quantiles")
    for number, channel in enumerate(fitted.target_channels):
        errors = {
            name: float(np.nanmean(np.concatenate(each.absolute)[:, number]))
            if is_absolute
            else float(np.sqrt(np.nanmean(np.concatenate(each.squared)[:, number])))
            for name, each in sums.items()
        }
        ours = errors.pop(MODEL)
        best = min(errors, key=lambda name: errors[name])
        # Not finite is not better either.
        if not ours <= 1.001 * errors[best]:
            has_diverged = not ours <= 3.0 * errors[best]
            return printable(
                f"the model is no better than a simple prediction in the validation period: "
                f"{'MAE' if is_absolute else 'RMSE'} of {channel.name} {ours:.4g}, of {best} {errors[best]:.4g}; "
                f"{'the training has diverged, lower learning_rate' if has_diverged else 'use that, or train longer'}"
            )
    return None


def _simple_predictions(
    fitted: Fitted, inputs: np.ndarray, valid: np.ndarray, *, is_forecast: bool
) -> dict[str, np.ndarray]:
    statistics = fitted.statistics
    found = {statistics.climatology_name: statistics.climatology_at(valid, fitted.calendar)}
    if (statistics.reference >= 0).all():
        references = statistics.references(inputs)
        found["raw input" if is_forecast or fitted.options.lead is None else "persistence"] = references
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
    variables = list(dict.fromkeys(channel.variable for channel in fitted.target_channels))
    dataset = open_fields(y, "targets", fitted.options.location, variables)
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
