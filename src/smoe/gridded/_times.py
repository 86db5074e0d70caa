"""Times as numbers of a calendar: the labels that inputs and targets are aligned by."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from smoe.errors import DataError

if TYPE_CHECKING:
    import xarray as xr

_UNITS = "seconds since 1970-01-01"
_SAME_CALENDARS = {
    "gregorian": "standard",
    "proleptic_gregorian": "standard",
    "365_day": "noleap",
    "366_day": "all_leap",
}
_SECONDS = {"s": 1, "sec": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hr": 3600, "hour": 3600,
            "d": 86400, "day": 86400, "w": 604800, "week": 604800}  # fmt: skip
_MONTHS = {"M": 1, "mo": 1, "month": 1, "Y": 12, "y": 12, "yr": 12, "year": 12}


@dataclass(frozen=True)
class TimeLabels:
    """Times of a coordinate, in the order of the file: seconds since 1970 in its calendar, int64, `(T,)`.

    The calendar `standard` includes NumPy's dates. `fractions` are nanoseconds from each whole second to the time of
    the file; None if all are whole.
    """

    seconds: np.ndarray
    calendar: str = "standard"
    is_cftime: bool = False
    fractions: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.seconds)

    def text(self, seconds: int) -> str:
        return show_time(seconds, self.calendar)

    def span(self) -> str:
        return f"{self.text(int(self.seconds.min()))} to {self.text(int(self.seconds.max()))}"

    def months(self, seconds: np.ndarray) -> np.ndarray:
        """Number of the calendar month of each time, counted from the year 0."""
        return np.asarray([date.year * 12 + date.month - 1 for date in _dates(seconds, self.calendar)], np.int64)

    def shifted(self, seconds: np.ndarray, lead: Lead) -> np.ndarray:
        """Times after a lead; months keep the day of the month, as far as the month has it.

        Where all times of the coordinate are last days of months, so are the times after the lead.
        """
        if not lead.months:
            return seconds + lead.seconds
        is_last = all(date.day == date.daysinmonth for date in _dates(self.seconds, self.calendar))
        dates = _dates(seconds, self.calendar)
        return np.asarray([_add_months(date, lead.months, is_last=is_last) for date in dates], np.int64)

    def coordinate(self, seconds: np.ndarray, positions: np.ndarray | None = None) -> np.ndarray:
        """Times as the file has them: NumPy's dates, or those of cftime."""
        fractions = np.zeros(1, np.int64) if self.fractions is None or positions is None else self.fractions[positions]
        if not self.is_cftime:
            return np.asarray(seconds, "datetime64[s]").astype("datetime64[ns]") + fractions.astype("timedelta64[ns]")
        dates = _dates(seconds, self.calendar)
        return dates + np.asarray([timedelta(microseconds=int(each) // 1000) for each in fractions])


def read_times(values: np.ndarray, where: str) -> TimeLabels:
    values = _from_years(np.atleast_1d(np.asarray(values)))
    if values.dtype.kind == "M":
        if np.isnat(values).any():
            raise DataError(f"{where} has {int(np.isnat(values).sum())} missing times (NaT): drop these")
        seconds = values.astype("datetime64[s]").astype(np.int64)
        if (np.abs(seconds) >= 2**63 // 10**9).any():
            labels = TimeLabels(seconds)
        else:
            # The nearest second: files keep times as fractions of days, which rounding moves.
            nanoseconds = values.astype("datetime64[ns]").astype(np.int64)
            seconds = (nanoseconds + 500_000_000) // 1_000_000_000
            fractions = nanoseconds - seconds * 1_000_000_000
            labels = TimeLabels(seconds, fractions=fractions if fractions.any() else None)
    elif values.dtype.kind == "O" and len(values) and all(hasattr(each, "calendar") for each in values):
        import cftime

        # The calendar of NumPy's dates is the proleptic one; the year 0 is none of the standard calendar.
        same = {} if min(date.year for date in values) < 1 else _SAME_CALENDARS
        calendars = {same.get(str(date.calendar), str(date.calendar)) for date in values}
        if len(calendars) > 1:
            raise DataError(f"{where} mixes the calendars {', '.join(sorted(calendars))}: convert it to one of them")
        try:
            numbers = cftime.date2num(values, _UNITS, calendar=values[0].calendar)
        except OverflowError as error:
            raise DataError(f"{where}: a time is out of range ({error}); its units or values are damaged") from error
        seconds = np.rint(np.asarray(numbers, np.float64)).astype(np.int64)
        micros = np.asarray([date.microsecond for date in values], np.int64)
        fractions = 1000 * np.where(micros < 500_000, micros, micros - 1_000_000)
        labels = TimeLabels(seconds, calendars.pop(), True, fractions if fractions.any() else None)
    elif values.dtype.kind == "O" and len(values) and getattr(values[0], "tzinfo", None) is not None:
        raise DataError(
            f"{where} has times with a time zone, such as {values[0]}: convert them to UTC without one, for example by "
            "dataset.assign_coords(time=dataset.indexes['time'].tz_convert(None))"
        )
    else:
        raise DataError(
            f"{where} holds no dates but {values.dtype} values such as {values[0] if len(values) else '(none)'}: give "
            "it units such as 'hours since 1970-01-01'"
        )
    unique, counts = np.unique(labels.seconds, return_counts=True)
    if len(unique) < len(labels):
        first = int(unique[counts > 1][0])
        raise DataError(
            f"{where} has {len(labels) - len(unique)} duplicate times, the first {labels.text(first)}: drop them, for "
            "example by dataset.drop_duplicates('time')"
        )
    return labels


def _from_years(values: np.ndarray) -> np.ndarray:
    """Dates of plain years such as 1954, in a calendar in which all years have the same length; others as they are."""
    is_years = values.dtype.kind in "iuf" and len(values) and ((values >= 1500) & (values <= 2500)).all()
    if not is_years or (values != np.rint(values)).any():
        return values
    import cftime

    return np.asarray([cftime.DatetimeNoLeap(int(year), 1, 1) for year in values])


_SINCE = re.compile(r"\s*(\w+)\s+since\s+(.+)", re.IGNORECASE)


def decode_times(dataset: xr.Dataset) -> xr.Dataset:
    """Decodes times that xarray does not decode: months and years since a date, and dates in the year 0."""
    import xarray as xr

    for name, variable in dataset.variables.items():
        since = _SINCE.fullmatch(str(variable.attrs.get("units", "")))
        if since is None or variable.dtype.kind not in "iuf":
            continue
        calendar = str(variable.attrs.get("calendar", "standard")).lower()
        try:
            try:
                decoded = xr.decode_cf(xr.Dataset({name: variable}), decode_timedelta=False)[name].variable.load()
            except (ValueError, OverflowError):
                attributes = {key: value for key, value in variable.attrs.items() if key not in ("units", "calendar")}
                dates = _dates_since(np.asarray(variable.values), since[1].lower(), since[2], calendar)
                decoded = xr.Variable(variable.dims, dates, attributes)
        except (ValueError, OverflowError) as error:
            raise DataError(
                f"{name} has the units {variable.attrs['units']!r}, which cannot be decoded ({error}): correct them, "
                "or open the file with decode_times=False and give it dates"
            ) from error
        dataset = dataset.assign_coords({name: decoded}) if name in dataset.coords else dataset.assign({name: decoded})
    return dataset


def _dates_since(numbers: np.ndarray, unit: str, start: str, calendar: str) -> np.ndarray:
    import cftime

    # The standard calendar of CF has no year 0.
    calendar = _SAME_CALENDARS.get(calendar, calendar)
    calendar = "proleptic_gregorian" if calendar == "standard" else calendar
    months = _MONTHS.get(unit.removesuffix("s"))
    if months is None:
        return np.asarray(cftime.num2date(numbers, f"{unit} since {start}", calendar, only_use_cftime_datetimes=True))
    first = cftime.num2date(0, f"days since {start}", calendar, only_use_cftime_datetimes=True)
    whole = np.floor(numbers * months + 1e-6)
    found = []
    for number, share in zip(whole.ravel(), (numbers * months - whole).ravel(), strict=True):
        begin, end = (_moved(first, int(number) + more) for more in (0, 1))
        found.append(begin + (end - begin) * round(max(float(share), 0.0), 6))
    dates = np.asarray(found, object).reshape(numbers.shape)
    if calendar == "proleptic_gregorian" and all(1678 <= each.year <= 2261 for each in found):
        return np.asarray([each.isoformat() for each in found], "datetime64[ns]").reshape(numbers.shape)
    return dates


@dataclass(frozen=True)
class Lead:
    seconds: int = 0
    months: int = 0

    def __str__(self) -> str:
        if self.months:
            return f"{self.months} month{'s' if self.months > 1 else ''}"
        for unit, length in (("D", 86400), ("h", 3600), ("min", 60)):
            if self.seconds % length == 0:
                return f"{self.seconds // length}{unit}"
        return f"{self.seconds}s"


def parse_lead(lead: Any) -> Lead:
    """Reads a lead time: text such as `3D`, `6h`, `1 month` or `1 year`, a timedelta, or None for no lead."""
    if lead is None:
        return Lead()
    if isinstance(lead, Lead):
        return lead
    match = re.fullmatch(r"\s*(-?\d+)\s*([A-Za-z]+?)s?\s*", str(lead))
    number, unit = (int(match[1]), match[2]) if match is not None else (0, "")
    months = _MONTHS.get(unit, _MONTHS.get(unit.lower()) if len(unit) > 1 else None)
    if isinstance(lead, np.timedelta64) or hasattr(lead, "total_seconds"):
        found = Lead(int(np.timedelta64(lead).astype("timedelta64[s]").astype(np.int64)))
    elif months is not None:
        found = Lead(months=number * months)
    elif unit.lower() in _SECONDS or str(lead).strip() == "0":
        found = Lead(number * _SECONDS.get(unit.lower(), 1))
    else:
        raise DataError(f"lead must be a time such as '6h', '3D' or '1 month', got {lead!r}")
    if found.seconds < 0 or found.months < 0:
        raise DataError(f"lead must not be negative, got {lead!r}")
    return found


@dataclass(frozen=True)
class MonthTimes:
    """Where in its month each time of a monthly series lies: seconds from its start, middle or end.

    Or a `first` time, which is the offset, with months of equal length after that month, counted from the year 0.
    """

    since: Literal["start", "middle", "end", "first"]
    offset: int
    length: int = 0
    first_month: int = 0

    def seconds(self, months: np.ndarray, calendar: str) -> np.ndarray:
        """The time in each month, which is counted from the year 0."""
        if self.since == "first":
            return self.offset + (months - self.first_month) * self.length
        starts, ends = _month_starts(months, calendar), _month_starts(months + 1, calendar)
        return self.offset + {"start": starts, "middle": (starts + ends) // 2, "end": ends}[self.since]


def find_month_times(labels: TimeLabels) -> MonthTimes | None:
    """The rule that the times of a monthly series follow; None if there is none, or a month has several times."""
    if len(labels) > 1 and np.median(np.diff(np.sort(labels.seconds))) < 27 * 86400:
        return None
    months = labels.months(labels.seconds)
    if not len(months) or len(np.unique(months)) < len(months):
        return None
    rules = [
        MonthTimes(since, int(labels.seconds[0] - MonthTimes(since, 0).seconds(months[:1], labels.calendar)[0]))
        for since in ("start", "end", "middle")
    ]
    if months[-1] != months[0]:
        length = int(labels.seconds[-1] - labels.seconds[0]) // int(months[-1] - months[0])
        rules.append(MonthTimes("first", int(labels.seconds[0]), length, int(months[0])))
    for rule in rules:
        if np.array_equal(rule.seconds(months, labels.calendar), labels.seconds):
            return rule
    return None


def _month_starts(months: np.ndarray, calendar: str) -> np.ndarray:
    import cftime

    own: dict[str, Any] = {"calendar": calendar, "has_year_zero": True}
    dates = [cftime.datetime(int(month) // 12, int(month) % 12 + 1, 1, **own) for month in months]
    return np.asarray(cftime.date2num(dates, _UNITS, **own), np.int64)


# Calendars in which all years, or months, have the same length.
_YEAR_DAYS = {"noleap": 365, "all_leap": 366, "360_day": 360}


def read_lead_times(values: np.ndarray, units: str, where: str, starts: TimeLabels) -> np.ndarray:
    values = np.atleast_1d(np.asarray(values))
    if values.dtype.kind == "m":
        return values.astype("timedelta64[s]").astype(np.int64)
    lengths, year = dict(_SECONDS), _YEAR_DAYS.get(starts.calendar, 0) * 86400
    if year:
        lengths |= {"year": year, "yr": year} | ({"month": year // 12} if starts.calendar == "360_day" else {})
    unit = units.strip().lower().removesuffix("s") or ("year" if regular_step(starts.seconds) == year else "?")
    if values.dtype.kind not in "iuf" or unit not in lengths:
        raise DataError(f"{where} has lead times in {units!r}: give them in hours, days, minutes or seconds")
    return np.rint(values.astype(np.float64) * lengths[unit]).astype(np.int64)


def regular_step(seconds: np.ndarray) -> int | None:
    """The step that all distances are multiples of, if it occurs most often; None for times without one."""
    steps = np.diff(np.sort(seconds))
    if not len(steps):
        return None
    lengths, counts = np.unique(steps, return_counts=True)
    step = int(lengths[np.argmax(counts)])
    return step if (steps % step == 0).all() else None


def show_time(seconds: int, calendar: str) -> str:
    date = _dates(np.asarray([seconds]), calendar)[0]
    text = date.strftime("%Y-%m-%d").strip().replace(" ", "0")
    return text if (date.hour, date.minute, date.second) == (0, 0, 0) else f"{text}T{date.hour:02d}:{date.minute:02d}"


def parse_date(text: str, calendar: str) -> tuple[int, int]:
    """Reads `2016`, `2016-03`, `2016-03-01` or `2016-03-01T06`: its first second and the first one after it."""
    import cftime

    match = re.fullmatch(
        r"(-?\d{1,4})(?:-(\d{1,2})(?:-(\d{1,2})(?:[T ](\d{1,2})(?::(\d{2})(?::(\d{2})(?:\.\d+)?)?)?)?)?)?", text.strip()
    )
    if match is None:
        raise DataError(f"{text!r} is not a date: write 2016, 2016-03, 2016-03-01 or 2016-03-01T06")
    year, month, day, hour, minute, second = (None if part is None else int(part) for part in match.groups())
    assert year is not None
    own: dict[str, Any] = {"calendar": calendar, "has_year_zero": True}
    try:
        start = cftime.datetime(year, month or 1, day or 1, hour or 0, minute or 0, second or 0, **own)
    except ValueError as error:
        raise DataError(f"{text!r} is not a date of the {calendar} calendar: {error}") from None
    first = int(cftime.date2num(start, _UNITS, **own))
    if month is None:
        return first, _add_months(start, 12)
    if day is None:
        return first, _add_months(start, 1)
    return first, first + (86400 if hour is None else 3600 if minute is None else 60 if second is None else 1)


def _dates(seconds: np.ndarray, calendar: str) -> np.ndarray:
    import cftime

    return np.asarray(
        cftime.num2date(np.asarray(seconds, np.int64), _UNITS, calendar=calendar, only_use_cftime_datetimes=True)
    )


def _add_months(date: Any, count: int, *, is_last: bool = False) -> int:
    import cftime

    return int(cftime.date2num(_moved(date, count, is_last=is_last), _UNITS, calendar=date.calendar))


def _moved(date: Any, count: int, *, is_last: bool = False) -> Any:
    """A date some months later: the same day of the month as far as there is one, or its last one."""
    year, month = divmod(date.year * 12 + date.month - 1 + count, 12)
    first = date.replace(day=1, year=year, month=month + 1)
    return first.replace(day=first.daysinmonth if is_last else min(date.day, first.daysinmonth))


@dataclass(frozen=True)
class Period:
    """A span of time: its first second, and the first second after it."""

    start: int
    stop: int
    calendar: str = "standard"

    def contains(self, seconds: np.ndarray) -> np.ndarray:
        return (seconds >= self.start) & (seconds < self.stop)

    def __str__(self) -> str:
        return f"{show_time(self.start, self.calendar)} to {show_time(self.stop - 1, self.calendar)}"


def parse_period(period: Any, calendar: str, first: int, last: int) -> Period:
    """Reads `1979:2015`, `2016`, `slice("1979", "2015")` or a period; both ends are included."""
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
    # Dates of other libraries have a space before the hour, which `parse_date` reads too.
    start = first if begin in (None, "") else parse_date(str(begin), calendar)[0]
    stop = last + 1 if end in (None, "") else parse_date(str(end), calendar)[1]
    if stop <= start:
        raise DataError(f"the period {period!r} ends before it begins")
    return Period(start, stop, calendar)


def check_apart(periods: Mapping[str, Period]) -> None:
    ordered = sorted(periods.items(), key=lambda item: item[1].start)
    for (name, period), (other, later) in itertools.pairwise(ordered):
        if later.start < period.stop:
            raise DataError(f"{name} ({period}) and {other} ({later}) overlap: choose periods apart from each other")


def samples_in(starts: np.ndarray, targets: np.ndarray, period: Period) -> np.ndarray:
    """Whether both input and target of a sample lie in a period: no target of one is an input of another."""
    return period.contains(starts) & period.contains(targets)


def remaining_samples(starts: np.ndarray, targets: np.ndarray, others: Mapping[str, Period]) -> np.ndarray:
    """Samples apart from all given periods: their targets lie before a period, or their inputs after it."""
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
    """Samples in the order of their inputs' times, `(N,)` each.

    Positions of inputs and targets, and the times of both in seconds; of a forecast, `starts` is its start.
    """

    inputs: np.ndarray
    targets: np.ndarray
    starts: np.ndarray
    valid: np.ndarray
    calendar: str = "standard"

    def __len__(self) -> int:
        return len(self.inputs)

    def select(self, chosen: np.ndarray) -> Pairs:
        return Pairs(self.inputs[chosen], self.targets[chosen], self.starts[chosen], self.valid[chosen], self.calendar)


def pair_by_time(inputs: TimeLabels, targets: TimeLabels, lead: Lead, *, lead_times: np.ndarray | None = None) -> Pairs:
    """Pairs each input with the target that lies the lead later.

    The inputs of forecasts are their start times; they have lead times in seconds, `(L,)`, in place of a lead, and the
    position of one is then `start * L + lead`.
    """
    import pandas as pd

    if inputs.calendar != targets.calendar:
        raise DataError(
            f"inputs are in the calendar {inputs.calendar} and targets in {targets.calendar}: convert one of them, for "
            "example by dataset.convert_calendar('standard')"
        )
    if lead_times is None:
        step = regular_step(inputs.seconds)
        if step is not None and lead.seconds % step:
            raise DataError(
                f"the lead {lead} is not a multiple of the {Lead(step)} between the times of the inputs: choose a "
                "multiple"
            )
        starts = inputs.seconds
        wanted = inputs.shifted(starts, lead)
    else:
        starts = np.repeat(inputs.seconds, len(lead_times))
        wanted = starts + np.tile(lead_times, len(inputs))
    there = targets.seconds
    if lead.months:
        there, wanted = targets.months(there), inputs.months(wanted)
        if len(np.unique(there)) < len(there):
            raise DataError(
                "a lead in months needs one target for each month, but a month has several; give days instead"
            )
    found = pd.Index(there).get_indexer(wanted)
    is_paired = found >= 0
    if not is_paired.any():
        raise DataError(
            f"no target lies {lead if lead_times is None else 'at the lead times'} after an input: inputs are from "
            f"{inputs.span()}, targets from {targets.span()}"
        )
    positions = np.flatnonzero(is_paired)
    positions = positions[np.argsort(starts[positions], kind="stable")]
    partners = found[positions]
    return Pairs(positions, partners, starts[positions], targets.seconds[partners], inputs.calendar)


def describe_lost(inputs: TimeLabels, targets: TimeLabels, lead: Lead) -> str | None:
    """A warning if inputs have no target at the lead, though targets around that time are not used either."""
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
