from __future__ import annotations

from datetime import timedelta
from typing import Any

import cftime
import numpy as np
import pandas as pd
import pytest

from gridded_files import times
from smoe.errors import DataError
from smoe.gridded._times import (
    Lead,
    Period,
    TimeLabels,
    check_apart,
    describe_lost,
    find_month_times,
    pair_by_time,
    parse_lead,
    parse_period,
    read_lead_times,
    read_times,
    regular_step,
    remaining_samples,
    samples_in,
    split_off_last,
)


def labels(count: int, start: str = "2001-01-01", step: str = "D") -> TimeLabels:
    return read_times(times(count, start, step), "time")


@pytest.mark.parametrize(
    ("text", "lead"),
    [
        ("3D", Lead(259200)),
        ("6h", Lead(21600)),
        ("6 hours", Lead(21600)),
        ("30min", Lead(1800)),
        ("1 month", Lead(months=1)),
        ("2M", Lead(months=2)),
        ("1 year", Lead(months=12)),
        (np.timedelta64(2, "D"), Lead(172800)),
        (None, Lead()),
    ],
)
def test_leads(text: object, lead: Lead) -> None:
    assert parse_lead(text) == lead and parse_lead(str(lead)) == lead


@pytest.mark.parametrize("text", ["three days", "3", "-1D", "3 fortnights"])
def test_a_lead_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="lead must"):
        parse_lead(text)


def test_last_days_of_months_stay_last_days() -> None:
    ends = read_times(np.array(["2001-01-31", "2001-02-28", "2001-03-31"], "datetime64[ns]"), "time")
    shown = [ends.text(int(seconds)) for seconds in ends.shifted(ends.seconds, Lead(months=1))]
    assert shown == ["2001-02-28", "2001-03-31", "2001-04-30"]
    days = read_times(np.array(["2001-02-27", "2001-02-28"], "datetime64[ns]"), "time")
    assert days.text(int(days.shifted(days.seconds, Lead(months=1))[1])) == "2001-03-28"


def test_pairs_follow_labels_not_positions() -> None:
    # Inputs unsorted, targets with another beginning and a gap: the loop below is the definition.
    inputs = read_times(times(10)[[3, 1, 2, 0, 9, 8, 7, 4, 6, 5]], "inputs")
    targets = read_times(np.delete(times(12, "2000-12-31"), 5), "targets")
    pairs = pair_by_time(inputs, targets, parse_lead("2D"))
    expected = [
        (i, j)
        for i, start in sorted(enumerate(inputs.seconds), key=lambda item: item[1])
        for j, valid in enumerate(targets.seconds)
        if valid == start + 2 * 86400
    ]
    assert list(zip(pairs.inputs, pairs.targets, strict=True)) == expected and len(expected) == 8
    np.testing.assert_array_equal(pairs.valid - pairs.starts, 2 * 86400)


def test_forecasts_pair_with_their_valid_times() -> None:
    starts = labels(4)
    leads = read_lead_times(np.array([0, 24, 48]), "hours", "lead", starts)
    targets = labels(4, "2001-01-03")
    pairs = pair_by_time(starts, targets, Lead(), lead_times=leads)
    expected = [
        (s * 3 + k, t)
        for s in range(4)
        for k in range(3)
        for t in range(4)
        if targets.seconds[t] == starts.seconds[s] + leads[k]
    ]
    assert sorted(zip(pairs.inputs, pairs.targets, strict=True)) == sorted(expected) and len(expected) == 9


def test_months_pair_by_the_calendar() -> None:
    middle = np.array(["2001-01-16T12", "2001-02-15", "2001-03-16T12", "2001-05-16T12"], "datetime64[ns]")
    pairs = pair_by_time(read_times(middle, "x"), read_times(middle, "y"), parse_lead("1 month"))
    assert pairs.inputs.tolist() == [0, 1] and pairs.targets.tolist() == [1, 2]
    end = read_times(np.array(["2001-01-31"], "datetime64[ns]"), "x")
    assert end.text(int(end.shifted(end.seconds, parse_lead("1 month"))[0])) == "2001-02-28"


@pytest.mark.parametrize("is_cftime", [False, True])
def test_times_a_fraction_of_a_second_apart_are_the_same_and_keep_it(is_cftime: bool) -> None:
    values: Any = times(4) + np.array([0, -1, 1, -1]) * np.timedelta64(1, "ms")
    if is_cftime:
        dates = [cftime.datetime(2001, 1, 1 + day, calendar="standard") for day in range(4)]
        values = np.asarray(dates) + np.array([0, -1, 1, -1]) * timedelta(milliseconds=1)
    moved = read_times(values, "time")
    assert len(pair_by_time(moved, labels(4), parse_lead("1D"))) == 3
    later = moved.coordinate(moved.shifted(moved.seconds, Lead(3600)), np.arange(4))
    hour: Any = timedelta(hours=1) if is_cftime else np.timedelta64(1, "h")
    np.testing.assert_array_equal(later, values + hour)


def test_calendars_of_climate_models() -> None:
    dates = np.array([cftime.datetime(2000, month, 30, calendar="360_day") for month in (1, 2, 3)])
    read = read_times(dates, "time")
    assert read.calendar == "360_day" and read.text(int(read.seconds[1])) == "2000-02-30"
    assert regular_step(read.seconds) == 30 * 86400
    assert list(read.coordinate(read.seconds)) == list(dates)
    assert len(pair_by_time(read, read, parse_lead("30D"))) == 2
    with pytest.raises(DataError, match="inputs are in the calendar 360_day and targets in standard"):
        pair_by_time(read, labels(3), Lead())
    standard = read_times(np.array([cftime.datetime(2001, 1, 2, calendar="gregorian")]), "time")
    assert standard.calendar == "standard" and standard.seconds[0] == labels(2).seconds[1]


def months(count: int, days: object) -> TimeLabels:
    starts = np.datetime64("2001-01") + np.arange(count)
    return read_times((starts.astype("datetime64[D]") + np.asarray(days)).astype("datetime64[ns]"), "time")


def test_pairs_that_are_lost_are_noticed() -> None:
    starts = months(60, 0)
    assert len(pair_by_time(starts, starts, parse_lead("30D"))) == 20
    lost = describe_lost(starts, starts, parse_lead("30D"))
    assert (
        lost is not None and "give the lead as '1 month'" in lost and lost.startswith("39 of 60 inputs have no target")
    )
    assert describe_lost(starts, starts, parse_lead("1 month")) is None
    shifted = TimeLabels(labels(20).seconds + np.where(np.arange(20) % 2, 300, 0))
    lost = describe_lost(labels(20), shifted, Lead())
    assert lost is not None and "the nearest targets are 5min off" in lost
    # The last inputs have no target in any case, and hours between daily targets are not lost.
    assert describe_lost(labels(20), labels(20), parse_lead("5D")) is None
    assert describe_lost(labels(480, step="h"), labels(20), Lead()) is None


@pytest.mark.parametrize("kind", ["start", "middle", "end", "first"])
def test_the_times_of_months_follow_a_rule(kind: str) -> None:
    starts = months(40, 0).seconds
    ends = months(41, 0).seconds[1:]
    if kind == "first":
        # Months of equal length, as those of climatological files.
        seconds = starts[0] + 1_300_000 + 2_629_800 * np.arange(40)
    else:
        seconds = {"start": starts + 43200, "middle": (starts + ends) // 2, "end": ends - 86400}[kind]
    whole = TimeLabels(seconds)
    rule = find_month_times(TimeLabels(seconds[:30]))
    assert rule is not None and rule.since == kind
    np.testing.assert_array_equal(rule.seconds(whole.months(seconds), "standard"), seconds)
    assert find_month_times(labels(40)) is None
    assert find_month_times(TimeLabels(starts + 3600 * (np.arange(40) ** 2 % 7))) is None


def test_bad_times_are_refused() -> None:
    with pytest.raises(DataError, match=r"2 duplicate times, the first 2001-01-02"):
        read_times(times(4)[[0, 1, 1, 1, 2]], "time of inputs")
    with pytest.raises(DataError, match="1 missing times"):
        read_times(np.array(["2001-01-01", "NaT"], "datetime64[ns]"), "time")
    with pytest.raises(DataError, match="holds no dates but float64 values such as 0"):
        read_times(np.zeros(3), "time")
    zoned = pd.date_range("2001-01-01", periods=3, tz="UTC").to_pydatetime()
    with pytest.raises(DataError, match=r"times with a time zone, such as .*tz_convert\(None\)"):
        read_times(zoned, "time")
    with pytest.raises(DataError, match="the lead 36h is not a multiple of the 1D"):
        pair_by_time(labels(4), labels(4), parse_lead("36h"))
    with pytest.raises(DataError, match="no target lies 9D after an input: inputs are from 2001-01-01 to 2001-01-04"):
        pair_by_time(labels(4), labels(4), parse_lead("9D"))
    with pytest.raises(DataError, match="lead times in 'parsecs'"):
        read_lead_times(np.arange(3), "parsecs", "lead", labels(4))


def day(text: str) -> int:
    return int(np.datetime64(text, "s").astype(np.int64))


@pytest.mark.parametrize(
    ("period", "start", "stop"),
    [
        ("2001", "2001-01-01", "2002-01-01"),
        ("2001:2003", "2001-01-01", "2004-01-01"),
        (slice("2001-03", "2001-04"), "2001-03-01", "2001-05-01"),
        (("2001-02-28", "2001-02-28"), "2001-02-28", "2001-03-01"),
        (":2001", "2000-06-01", "2002-01-01"),
        (slice(np.datetime64("2001-02-03"), None), "2001-02-03", "2004-01-01T00:00:01"),
    ],
)
def test_periods_include_both_ends(period: object, start: str, stop: str) -> None:
    found = parse_period(period, "standard", day("2000-06-01"), day("2004-01-01"))
    assert (found.start, found.stop) == (day(start), day(stop))


@pytest.mark.parametrize("period", ["2003:2001", "abc", "2001-13", slice("2001", "2002", 2)])
def test_a_period_that_is_none_is_refused(period: object) -> None:
    with pytest.raises(DataError):
        parse_period(period, "standard", 0, 1)


def test_no_time_of_one_period_is_learned_from_in_another() -> None:
    starts = labels(40).seconds
    valid = starts + 3 * 86400
    validation = parse_period("2001-01-11:2001-01-20", "standard", 0, 0)
    test = parse_period("2001-01-25:2001-01-31", "standard", 0, 0)
    rest = remaining_samples(starts, valid, {"validation": validation, "test": test})
    used = set(starts[rest]) | set(valid[rest])
    held = {t for t in starts if validation.start <= t < validation.stop or test.start <= t < test.stop}
    assert not used & held and rest.sum() == 7 + 1 + 9
    inside = samples_in(starts, valid, validation)
    assert inside.sum() == 7 and starts[inside].min() - starts[rest][starts[rest] < validation.start].max() > 3 * 86400


def test_overlapping_periods_are_refused() -> None:
    one, other = Period(0, 86400 * 10), Period(86400 * 9, 86400 * 20)
    with pytest.raises(DataError, match=r"train \(1970-01-01 to 1970-01-10T23:59\) and test .* overlap"):
        check_apart({"test": other, "train": one})
    check_apart({"test": other, "train": Period(0, 86400 * 9)})


def test_the_last_share_is_split_off() -> None:
    starts = labels(10).seconds
    assert split_off_last(starts, starts, 0.2, "standard").start == starts[8]
