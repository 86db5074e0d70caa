"""What a preparation is going to do: which steps of which years, whether they are there, and the disk they take."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smoe.data.weather.errors import DataError
from smoe.data.weather.source import WeatherSource
from smoe.data.weather.store import WeatherStore
from smoe.data.weather.store_format import DTYPE, FIELDS_FILE, NaNPolicy
from smoe.data.weather.variables import DEFAULT_CONSTANTS, DEFAULT_INPUTS, VARIABLES, parse_channel

DEFAULT_STATISTICS_YEARS = (1979, 2015)

# Where a record begins, sums over past hours are not defined yet: in WeatherBench they start at 07 h of 1979, and the
# sums over 6 hours 5 hours later. Rasp & Thuerey leave out the first 24 h.
_MAX_UNDEFINED_HOURS = 24


@dataclass(frozen=True)
class Preparation:
    """What is wanted.

    Attributes:
        years: first and last year of the store.
        statistics_years: first and last year that mean and std are taken from: the training years. None: 1979 to 2015,
            or those of the store that is added to.
        channels: fields, in the order of the store.
        constants: fields without a time.
        step_hours: between the steps of the store; None: as in the source.
        on_nan: `refuse`; `zero-tisr` replaces NaNs of solar radiation by 0, as Rasp & Thuerey do, and refuses others;
            `zero` replaces all by 0 (in physical units); `mean` replaces them by the channel's mean (no rain, for
            precipitation), and the statistics are of the other values.
    """

    years: tuple[int, int] = (1979, 2018)
    statistics_years: tuple[int, int] | None = None
    channels: tuple[str, ...] = DEFAULT_INPUTS
    constants: tuple[str, ...] = DEFAULT_CONSTANTS
    step_hours: int | None = None
    on_nan: NaNPolicy = "refuse"


@dataclass(frozen=True)
class Span:
    """The steps of a year that go into the store: every `stride`-th step of the source from `first` on."""

    year: int
    first: int
    stride: int
    num_steps: int
    first_time: str


@dataclass(frozen=True)
class Plan:
    """What is going to be written, and from which steps the statistics are taken."""

    channels: tuple[str, ...]
    constants: tuple[str, ...]
    step_hours: int
    on_nan: NaNPolicy
    statistics_years: tuple[int, int]
    shape: tuple[int, int]
    num_rows_before: int
    years: tuple[Span, ...]
    statistics_spans: tuple[Span, ...]

    @property
    def bytes_per_row(self) -> int:
        """Of one step of all channels."""
        return len(self.channels) * self.shape[0] * self.shape[1] * DTYPE.itemsize

    @property
    def num_bytes(self) -> int:
        """Of the fields when all is written, with those of an older store that is added to."""
        return (self.num_rows_before + sum(span.num_steps for span in self.years)) * self.bytes_per_row

    def to_plain(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def make_plan(
    source: WeatherSource, wanted: Preparation, existing: WeatherStore | None, statistics_from: WeatherStore | None
) -> Plan:
    """Checks what is wanted against what there is.

    Raises:
        DataError: naming what is missing or does not fit, and what to do.
    """
    step_hours = source.step_hours if wanted.step_hours is None else wanted.step_hours
    if step_hours % source.step_hours or 24 % step_hours:
        raise DataError(
            f"--step-hours {step_hours} must divide 24 and be a multiple of the {source.step_hours} hours between the "
            "steps of the data"
        )
    _check_names(source, wanted)
    years = _year_range("--years", wanted.years)
    statistics_years = wanted.statistics_years
    reused = existing or statistics_from
    if reused is not None:
        statistics_years = statistics_years or reused.statistics_years
        _check_statistics(reused, wanted, statistics_years)
    statistics_years = statistics_years or DEFAULT_STATISTICS_YEARS
    if existing is not None:
        _check_same(existing, source, wanted, step_hours)
        years = [year for year in years if year not in existing.years()]
        if years and years[0] < existing.years()[-1]:
            raise DataError(
                f"{existing.path} ends with {existing.years()[-1]}, and only later years can be added, not {years[0]}: "
                "prepare all years into a new store"
            )
    in_statistics = [] if reused is not None else _year_range("--statistics-years", statistics_years)
    missing = sorted({*years, *in_statistics} - set(source.years))
    if missing:
        raise DataError(
            f"the data lack {_name_years(missing)}, which --years or --statistics-years ask for; there are "
            f"{_name_years(list(source.years))}"
        )
    source.check(wanted.channels, sorted({*years, *in_statistics}))
    spans = {year: _span(source, year, wanted.channels, step_hours) for year in sorted({*years, *in_statistics})}
    return Plan(
        channels=wanted.channels,
        constants=wanted.constants,
        step_hours=step_hours,
        on_nan=wanted.on_nan,
        statistics_years=statistics_years,
        shape=source.grid.shape,
        num_rows_before=0 if existing is None else len(existing.times),
        years=tuple(spans[year] for year in years),
        statistics_spans=tuple(spans[year] for year in in_statistics),
    )


def check_disk(plan: Plan, output: Path) -> str:
    """Returns what the store takes, in words.

    Raises:
        DataError: if the disk has less.
    """
    fields = output / FIELDS_FILE
    # A file that was extended, but not written yet, may have a size without the room.
    present = min(fields.stat().st_blocks * 512, plan.num_bytes) if fields.is_file() else 0
    needed = plan.num_bytes - present
    free = shutil.disk_usage(output).free
    size = f"{plan.num_bytes / 1e9:.2f} GB"
    if needed > free:
        raise DataError(
            f"the store takes {size}, of which {needed / 1e9:.2f} GB are not there yet, and the disk of {output} has "
            f"{free / 1e9:.2f} GB free: choose another disk, fewer --years or --channels, or a larger --step-hours"
        )
    num_steps = sum(span.num_steps for span in plan.years)
    return (
        f"{num_steps:,} steps of {len(plan.channels)} channels in {len(plan.years)} years; the store takes {size} "
        f"({free / 1e9:.1f} GB are free)"
    )


def _check_names(source: WeatherSource, wanted: Preparation) -> None:
    if not wanted.channels:
        raise DataError("--channels must name at least one channel")
    for names in (wanted.channels, wanted.constants):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(f"named more than once: {', '.join(twice)}")
    for name in wanted.channels:
        parse_channel(name)
    for kind, names, known in (
        ("channels", wanted.channels, source.channels),
        ("constants", wanted.constants, source.constant_names),
    ):
        missing = [name for name in names if name not in known]
        if missing:
            raise DataError(
                f"the data lack the {kind} {', '.join(missing)}; there are {', '.join(known)}: add the files, or "
                f"choose other --{kind}"
            )


def _check_statistics(store: WeatherStore, wanted: Preparation, statistics_years: tuple[int, int]) -> None:
    if statistics_years != store.statistics_years:
        raise DataError(
            f"the statistics of {store.path} are of {store.statistics_years[0]} to {store.statistics_years[1]}, not of "
            f"--statistics-years {statistics_years[0]} {statistics_years[1]}: leave that option out"
        )
    store.channel_indices(wanted.channels)
    store.constant_indices(wanted.constants)


def _check_same(existing: WeatherStore, source: WeatherSource, wanted: Preparation, step_hours: int) -> None:
    pairs = {
        "channels": (existing.channels, wanted.channels),
        "constants": (existing.constant_names, wanted.constants),
        "step-hours": (existing.step_hours, step_hours),
        "on-nan": (existing.metadata.on_nan, wanted.on_nan),
    }
    for name, (old, new) in pairs.items():
        if old != new:
            raise DataError(
                f"{existing.path} was prepared with --{name} {_words(old)}, not {_words(new)}: years are added with "
                "the same options only; otherwise prepare a new store"
            )
    if existing.grid != source.grid:
        raise DataError(
            f"{existing.path} has a grid of {existing.grid.shape}, the data one of {source.grid.shape} or with other "
            "coordinates: prepare a new store"
        )


def _words(value: object) -> str:
    return " ".join(str(item) for item in value) if isinstance(value, tuple) else str(value)


def _year_range(option: str, years: tuple[int, int]) -> list[int]:
    if years[0] > years[1]:
        raise DataError(f"{option} goes from the first to the last year, got {years[0]} {years[1]}")
    return list(range(years[0], years[1] + 1))


def _name_years(years: list[int]) -> str:
    return (
        ", ".join(str(year) for year in years) if len(years) < 4 else f"{years[0]} to {years[-1]} ({len(years)} years)"
    )


def _span(source: WeatherSource, year: int, channels: tuple[str, ...], step_hours: int) -> Span:
    times = source.times(year)
    first = _count_undefined(source, year, times, channels)
    # Steps are those of the day's hours 0, step, 2 * step, ..., wherever the data begin.
    hours = times[first:].astype("datetime64[h]").astype(np.int64)
    on_step = np.flatnonzero(hours % step_hours == 0)
    if not len(on_step):
        raise DataError(f"the year {year} has no step at a multiple of {step_hours} hours; choose another --step-hours")
    first += int(on_step[0])
    stride = step_hours // source.step_hours
    kept = times[first::stride]
    if len(kept) > 1 and not (np.diff(kept) == np.timedelta64(step_hours, "h")).all():
        raise DataError(f"the times of {year} are not {step_hours} hours apart everywhere: see smoe data check")
    return Span(year, first, stride, len(kept), str(kept[0].astype("datetime64[h]")))


def _count_undefined(source: WeatherSource, year: int, times: np.ndarray, channels: tuple[str, ...]) -> int:
    """Leading steps at which a sum over past hours has no value anywhere, because the record begins here."""
    if year - 1 in source.years:
        return 0
    most = 0
    longest = np.timedelta64(_MAX_UNDEFINED_HOURS, "h")
    for channel in channels:
        if VARIABLES[parse_channel(channel).variable].is_accumulated:
            values = source.read(channel, year)
            num_steps = next((step for step, field in enumerate(values) if not np.isnan(field).all()), len(values))
            is_short = num_steps < len(times) and times[num_steps] - times[0] <= longest
            most = max(most, num_steps if is_short else 0)
    return most
