"""Plans a preparation: checks its options against data and existing store, and selects the steps of each year."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from smoe.errors import DataError
from smoe_paper.atmosphere.axes import describe_short_year
from smoe_paper.atmosphere.stores import DTYPE, describe_years
from smoe_paper.atmosphere.variables import DEFAULT_CONSTANTS, DEFAULT_INPUTS, parse_channel
from smoe_paper.weather.data.source import WeatherSource
from smoe_paper.weather.data.store import NaNPolicy, WeatherStore, YearSpan, find_span

DEFAULT_STATISTICS_YEARS = (1979, 2015)


@dataclass(frozen=True)
class Preparation:
    """Options of a preparation.

    Attributes:
        years: First and last year of the store.
        statistics_years: First and last year of the statistics, which should be the training years. None for 1979 to
            2015, or the years of the existing store or of the store that gives the statistics.
        channels: Names of the fields, in the order of the store.
        constants: Names of the fields without a time dimension.
        step_hours: Hours between the steps of the store; None for the step of the source.
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
class Plan:
    """Rows to write, and the steps from which the statistics are computed.

    Attributes:
        statistics_from: Checksum of the store that gives the statistics, if any.
        num_rows_before: Number of steps in the existing store.
        years: Years to write, in order.
        statistics_spans: Steps from which the statistics are computed; empty if they are known.
    """

    channels: tuple[str, ...]
    constants: tuple[str, ...]
    step_hours: int
    on_nan: NaNPolicy
    statistics_years: tuple[int, int]
    statistics_from: str | None
    shape: tuple[int, int]
    num_rows_before: int
    years: tuple[YearSpan, ...]
    statistics_spans: tuple[YearSpan, ...]

    @property
    def bytes_per_row(self) -> int:
        """Size of one step of all channels."""
        return len(self.channels) * self.shape[0] * self.shape[1] * DTYPE.itemsize

    @property
    def num_new_rows(self) -> int:
        """Number of steps to write."""
        return sum(span.num_steps for span in self.years)

    @property
    def num_bytes(self) -> int:
        """Size of the fields of the complete store."""
        return (self.num_rows_before + self.num_new_rows) * self.bytes_per_row

    def short_years(self) -> list[str]:
        """Describes the years that are incomplete in the data."""
        counts = {span.year: span.num_steps + span.num_before for span in self.years}
        return [text for year, count in counts.items() for text in describe_short_year(year, count, self.step_hours)]

    def to_plain(self) -> dict[str, Any]:
        """Returns the plan as plain values."""
        return asdict(self)


def make_plan(
    source: WeatherSource, wanted: Preparation, existing: WeatherStore | None, statistics_from: WeatherStore | None
) -> Plan:
    """Checks the options against the available data.

    Args:
        source: Source of the fields.
        wanted: Options of the preparation.
        existing: Finished store to which years are added.
        statistics_from: Store whose statistics are used.

    Raises:
        DataError: If something is missing or inconsistent; the message contains the remedy.
    """
    channels, constants = wanted.channels, wanted.constants
    step_hours = source.step_hours if wanted.step_hours is None else wanted.step_hours
    _check_step(source, step_hours)
    _check_names(source, channels, constants)
    years = _year_range("--years", wanted.years)
    if existing is not None:
        _check_same_options(
            existing, source, channels=channels, constants=constants, step_hours=step_hours, on_nan=wanted.on_nan
        )
        if statistics_from is not None:
            _check_same_statistics(existing, statistics_from)
        years = _later_years(existing, years)
    statistics_years, in_statistics = wanted.statistics_years, []
    reused = existing or statistics_from
    if reused is not None:
        _check_statistics(reused, channels, constants, statistics_years)
        statistics_years = reused.statistics_years
    else:
        statistics_years = statistics_years or DEFAULT_STATISTICS_YEARS
        in_statistics = _year_range("--statistics-years", statistics_years)
    all_years = sorted({*years, *in_statistics})
    _check_years(source, all_years)
    source.check(channels, all_years)
    spans = {year: find_span(source, year, channels, step_hours) for year in all_years}
    return Plan(
        channels=channels,
        constants=constants,
        step_hours=step_hours,
        on_nan=wanted.on_nan,
        statistics_years=statistics_years,
        statistics_from=None if statistics_from is None else statistics_from.metadata.checksum,
        shape=source.grid.shape,
        num_rows_before=0 if existing is None else len(existing.times),
        years=tuple(spans[year] for year in years),
        statistics_spans=tuple(spans[year] for year in in_statistics),
    )


def _year_range(option: str, years: tuple[int, int]) -> list[int]:
    if years[0] > years[1]:
        raise DataError(f"{option} goes from the first to the last year, got {years[0]} {years[1]}")
    return list(range(years[0], years[1] + 1))


def _later_years(existing: WeatherStore, years: list[int]) -> list[int]:
    new = [year for year in years if year not in existing.years()]
    last = existing.years()[-1]
    if new and new[0] < last:
        raise DataError(
            f"{existing.path} ends with {last}, and only later years can be added, not {new[0]}: prepare all years "
            "into a new store"
        )
    return new


def _check_names(source: WeatherSource, channels: tuple[str, ...], constants: tuple[str, ...]) -> None:
    """Checks that every name is known, unique, and present in the data."""
    if not channels:
        raise DataError("--channels must name at least one channel")
    for name in channels:
        parse_channel(name)
    for option, names, known in (
        ("channels", channels, source.channels),
        ("constants", constants, source.constant_names),
    ):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(f"--{option} names {', '.join(twice)} more than once")
        missing = [name for name in names if name not in known]
        if missing:
            raise DataError(
                f"the data lack the {option} {', '.join(missing)}; there are {', '.join(known)}: add the files, or "
                f"choose other --{option}"
            )


def _check_years(source: WeatherSource, years: list[int]) -> None:
    """Checks that every year is in the data."""
    missing = tuple(year for year in years if year not in source.years)
    if missing:
        raise DataError(
            f"the data lack {describe_years(missing)}, which --years or --statistics-years ask for; there are "
            f"{describe_years(source.years)}"
        )


def _check_step(source: WeatherSource, step_hours: int) -> None:
    """Checks that the store's step can be taken from the data."""
    if step_hours % source.step_hours or 24 % step_hours:
        raise DataError(
            f"--step-hours {step_hours} must divide 24 and be a multiple of the {source.step_hours} hours between the "
            "steps of the data"
        )


def _check_statistics(
    store: WeatherStore, channels: tuple[str, ...], constants: tuple[str, ...], years: tuple[int, int] | None
) -> None:
    """Checks that the statistics of a store cover these years and channels."""
    if years not in (None, store.statistics_years):
        raise DataError(
            f"the statistics of {store.path} are of {store.statistics_years[0]} to {store.statistics_years[1]}, not of "
            f"--statistics-years {years[0]} {years[1]}: leave that option out"
        )
    store.channel_indices(channels)
    store.constant_indices(constants)


def _check_same_options(
    existing: WeatherStore,
    source: WeatherSource,
    *,
    channels: tuple[str, ...],
    constants: tuple[str, ...],
    step_hours: int,
    on_nan: NaNPolicy,
) -> None:
    """Checks that an existing store was prepared with the same options."""
    pairs = {
        "channels": (existing.channels, channels),
        "constants": (existing.constant_names, constants),
        "step-hours": (existing.step_hours, step_hours),
        "on-nan": (existing.metadata.on_nan, on_nan),
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


def _check_same_statistics(existing: WeatherStore, statistics_from: WeatherStore) -> None:
    """Checks that an existing store was normalised with the same statistics."""
    indices = statistics_from.channel_indices(existing.channels)
    if (existing.mean != statistics_from.mean[indices]).any() or (existing.std != statistics_from.std[indices]).any():
        raise DataError(
            f"{existing.path} was not normalised with the statistics of {statistics_from.path}: leave out "
            "--statistics-from, or prepare a new store"
        )


def _words(value: object) -> str:
    return " ".join(str(item) for item in value) if isinstance(value, tuple) else str(value)
