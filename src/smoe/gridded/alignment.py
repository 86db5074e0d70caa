"""Inputs and targets paired by their time labels, never by position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smoe.errors import DataError
from smoe.gridded.time_labels import Lead, TimeLabels, regular_step


@dataclass(frozen=True)
class Pairs:
    """Samples in the order of their inputs' times.

    Attributes:
        inputs: Position of the input of each sample, `(N,)`.
        targets: Position of its target, `(N,)`.
        starts: Time of the input (for a forecast, its start), seconds, `(N,)`.
        valid: Time of the target, seconds, `(N,)`.
        calendar: Calendar of the times.
    """

    inputs: np.ndarray
    targets: np.ndarray
    starts: np.ndarray
    valid: np.ndarray
    calendar: str = "standard"

    def __len__(self) -> int:
        return len(self.inputs)

    def select(self, chosen: np.ndarray) -> Pairs:
        """Some of the samples."""
        return Pairs(self.inputs[chosen], self.targets[chosen], self.starts[chosen], self.valid[chosen], self.calendar)


def pair_by_time(inputs: TimeLabels, targets: TimeLabels, lead: Lead, *, lead_times: np.ndarray | None = None) -> Pairs:
    """Pairs each input with the target that lies the lead later.

    Args:
        inputs: Times of the inputs; of forecasts, their start times.
        targets: Times of the targets.
        lead: Time from input to target. For forecasts with lead times of their own it must be none.
        lead_times: Lead times of forecasts, seconds, `(L,)`. The position of an input is then `start * L + lead`.

    Raises:
        DataError: If the calendars differ, the lead is not a multiple of the step, or no pair is found.
    """
    if inputs.calendar != targets.calendar:
        raise DataError(
            f"inputs are in the calendar {inputs.calendar} and targets in {targets.calendar}: convert one of them, for "
            "example by dataset.convert_calendar('standard')"
        )
    if lead_times is None:
        starts, positions = inputs.seconds, np.arange(len(inputs))
        _check_multiple(inputs, lead)
        wanted = inputs.shifted(starts, lead)
    else:
        starts = np.repeat(inputs.seconds, len(lead_times))
        positions = np.arange(len(starts))
        wanted = starts + np.tile(lead_times, len(inputs))
    found = _find(_month_labels(targets), inputs.months(wanted)) if lead.months else _find(targets.seconds, wanted)
    is_paired = found >= 0
    if not is_paired.any():
        raise DataError(
            f"no target lies {lead if lead_times is None else 'at the lead times'} after an input: inputs are from "
            f"{_range(inputs)}, targets from {_range(targets)}"
        )
    order = np.argsort(starts[is_paired], kind="stable")
    target_positions = found[is_paired][order]
    return Pairs(
        positions[is_paired][order],
        target_positions,
        starts[is_paired][order],
        targets.seconds[target_positions],
        inputs.calendar,
    )


def describe_lost(inputs: TimeLabels, targets: TimeLabels, lead: Lead) -> str | None:
    """A warning if inputs have no target at the lead, though targets around that time are not used either.

    Args:
        inputs: Times of the inputs.
        targets: Times of the targets.
        lead: Time from input to target.
    """
    if lead.months:
        wanted, there = inputs.months(inputs.seconds) + lead.months, targets.months(targets.seconds)
    else:
        wanted, there = inputs.seconds + lead.seconds, targets.seconds
    is_around = (wanted >= there.min()) & (wanted <= there.max())
    is_lost = is_around & ~np.isin(wanted, there)
    in_reach = (there >= wanted.min()) & (there <= wanted.max())
    is_unused = in_reach & ~np.isin(there, wanted)
    # A tenth of both: targets that are rarer than inputs, or more frequent, lose nothing.
    if 10 * is_lost.sum() <= is_around.sum() or 10 * is_unused.sum() <= in_reach.sum():
        return None
    hint = "the times have gaps"
    if not lead.months:
        ordered = np.sort(there)
        places = np.clip(np.searchsorted(ordered, wanted[is_lost]), 1, len(ordered) - 1)
        distances = np.minimum(abs(ordered[places] - wanted[is_lost]), abs(wanted[is_lost] - ordered[places - 1]))
        months = round(lead.seconds / (30.44 * 86400))
        steps = np.diff(ordered)
        if months and ((steps >= 28 * 86400) & (steps <= 31 * 86400)).mean() > 0.5:
            hint = f"the targets are monthly, give the lead as '{Lead(months=months)}'"
        elif len(steps) and np.median(distances) < 0.25 * np.median(steps):
            hint = f"the nearest targets are {Lead(int(np.median(distances)))} off, round the times (.dt.round)"
    return (
        f"{int(is_lost.sum())} of {len(inputs)} inputs have no target {lead} later, and {int(is_unused.sum())} of "
        f"{len(targets)} targets no input: {hint}"
    )


def _check_multiple(inputs: TimeLabels, lead: Lead) -> None:
    step = regular_step(inputs.seconds)
    if step is not None and lead.seconds % step:
        raise DataError(
            f"the lead {lead} is not a multiple of the {Lead(step)} between the times of the inputs: choose a multiple"
        )


def _month_labels(targets: TimeLabels) -> np.ndarray:
    labels = targets.months(targets.seconds)
    if len(np.unique(labels)) < len(labels):
        raise DataError("a lead in months needs one target for each month, but a month has several; give days instead")
    return labels


def _find(labels: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Position of each wanted label, or -1."""
    if not len(labels):
        return np.full(len(wanted), -1)
    order = np.argsort(labels)
    places = np.minimum(np.searchsorted(labels, wanted, sorter=order), len(labels) - 1)
    positions = order[places]
    return np.where(labels[positions] == wanted, positions, -1)


def _range(labels: TimeLabels) -> str:
    if not len(labels):
        return "(no times)"
    return f"{labels.text(int(labels.seconds.min()))} to {labels.text(int(labels.seconds.max()))}"
