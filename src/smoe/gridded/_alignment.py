"""Periods to train, validate and test on; inputs and targets paired by their time labels, never by position."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from smoe.errors import DataError
from smoe.gridded._times import Lead, TimeLabels, parse_date, regular_step, show_time


@dataclass(frozen=True)
class Period:
    """A span of time.

    Attributes:
        start: First second.
        stop: First second after it.
        calendar: Calendar of both.
    """

    start: int
    stop: int
    calendar: str = "standard"

    def contains(self, seconds: np.ndarray) -> np.ndarray:
        """Whether times lie in the span, as booleans."""
        return (seconds >= self.start) & (seconds < self.stop)

    def __str__(self) -> str:
        """First and last time."""
        return f"{show_time(self.start, self.calendar)} to {show_time(self.stop - 1, self.calendar)}"


def parse_period(period: Any, calendar: str, first: int, last: int) -> Period:
    """Reads `1979:2015`, `2016`, `slice("1979", "2015")` or a period; both ends are included.

    Args:
        period: What is read.
        calendar: Calendar of the dates.
        first: First time there is, for a period without a beginning, such as `:2015`.
        last: Last time there is, for one without an end.

    Raises:
        DataError: If it cannot be read or ends before it begins.
    """
    if isinstance(period, Period):
        return period
    if isinstance(period, slice):
        if period.step is not None:
            raise DataError(f"a period is contiguous and has no step, got {period}")
        begin, end = period.start, period.stop
    elif isinstance(period, (tuple, list)) and len(period) == 2:
        begin, end = period
    else:
        begin, colon, end = str(period).partition(":")
        if colon and begin.count("-") == 2 and "T" in begin and len(end.split(":")) > 2:
            raise DataError(f"the period {period!r} has minutes: give it as a slice of two dates")
        end = end if colon else begin
    start = first if begin in (None, "") else parse_date(_text(begin), calendar)[0]
    stop = last + 1 if end in (None, "") else parse_date(_text(end), calendar)[1]
    if stop <= start:
        raise DataError(f"the period {period!r} ends before it begins")
    return Period(start, stop, calendar)


def _text(date: Any) -> str:
    return str(date).replace(" ", "T") if not isinstance(date, str) else date


def check_apart(periods: Mapping[str, Period]) -> None:
    """Refuses periods that overlap.

    Raises:
        DataError: With the two periods.
    """
    ordered = sorted(periods.items(), key=lambda item: item[1].start)
    for (name, period), (later_name, later) in itertools.pairwise(ordered):
        if later.start < period.stop:
            raise DataError(
                f"{name} ({period}) and {later_name} ({later}) overlap: choose periods apart from each other"
            )


def samples_in(starts: np.ndarray, targets: np.ndarray, period: Period) -> np.ndarray:
    """Whether both the input and the target of a sample lie in a period.

    So that no target of one period is an input of another: the inputs of two periods are at least the lead apart.
    """
    return period.contains(starts) & period.contains(targets)


def remaining_samples(starts: np.ndarray, targets: np.ndarray, others: Mapping[str, Period]) -> np.ndarray:
    """Samples apart from all given periods: their targets lie before a period, or their inputs after it.

    Args:
        starts: Times of the inputs.
        targets: Times of the targets.
        others: Periods to keep away from.
    """
    kept = np.ones(len(starts), dtype=bool)
    for period in others.values():
        kept &= (targets < period.start) | (starts >= period.stop)
    return kept


def split_off_last(starts: np.ndarray, targets: np.ndarray, share: float, calendar: str) -> Period:
    """The last share of the times as a period, for validation where none is given."""
    times = np.unique(np.concatenate([starts, targets]))
    begin = int(times[min(int(len(times) * (1.0 - share)), len(times) - 1)])
    return Period(begin, int(times[-1]) + 1, calendar)


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
