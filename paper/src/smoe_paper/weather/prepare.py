"""Makes weather stores: checks the options against the data, computes the statistics, and writes year by year."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smoe.errors import DataError
from smoe_paper.atmosphere.axes import describe_short_year
from smoe_paper.atmosphere.store import (
    DTYPE,
    check_disk,
    create_array,
    describe_years,
    only_writer,
    read_metadata,
    write_metadata,
    written_by_map,
)
from smoe_paper.atmosphere.variables import VARIABLES, parse_channel
from smoe_paper.weather.store import (
    CONSTANTS,
    FIELDS,
    FORMAT,
    PRECIPITATION,
    PRECIPITATION_EPSILON,
    Metadata,
    NaNPolicy,
    WeatherStore,
    read_year,
    transform,
)

if TYPE_CHECKING:
    from smoe.training.progress import ProgressBar
    from smoe_paper.atmosphere.axes import Grid
    from smoe_paper.weather.archives import WeatherSource
    from smoe_paper.weather.commands import Preparation

DEFAULT_STATISTICS_YEARS = (1979, 2015)
_SMALLER = "fewer --years or --channels, or a larger --step-hours"
# A year of a channel is converted to float64 in pieces of this many time steps, to bound the memory.
_STEPS_PER_PIECE = 64
# At the start of a record, sums over past hours are not defined yet: in WeatherBench they start at 07 h of 1979, and
# the sums over 6 hours 5 hours later. Rasp & Thuerey leave out the first 24 h.
_LONGEST_UNDEFINED = np.timedelta64(24, "h")


def prepare(
    source: WeatherSource,
    output: Path,
    wanted: Preparation,
    reporter: ProgressBar,
    statistics_from: WeatherStore | None = None,
) -> WeatherStore:
    """Writes a store, resumes an unfinished one after its last complete year, or adds later years to a finished one.

    The training years are read twice: once for the statistics, once to be written. At most one channel of one year is
    in memory.
    """
    with only_writer(output, (FIELDS, CONSTANTS)):
        content = read_metadata(output, FORMAT)
        existing = WeatherStore.open(output) if content and content["finished"] else None
        plan = make_plan(source, wanted, existing, statistics_from)
        # Read before hours are spent on the statistics, and before the notices, which may include corrected constants.
        constants = _read_constants(source, plan.constants) if existing is None else None
        for notice in (*source.notices, *plan.short_years()):
            reporter.notify(notice)
        if existing is not None and not plan.years:
            reporter.notify(f"{output} holds these years already: nothing to do")
            return existing
        state = _State.begin(output, plan, content)
        to_write = [span for span in plan.years if not _is_written(output, span)]
        num_channels = len(plan.channels)
        steps = f"{sum(span.num_steps for span in plan.years):,} steps of {num_channels} channels"
        reporter.notify(f"{steps} in {len(plan.years)} years; {check_disk(output, plan.num_bytes, _SMALLER)}")
        num_written = len(plan.years) - len(to_write)
        if num_written or state.moments:
            reporter.notify(f"resuming: {num_written} of {len(plan.years)} years are written")
        num_passes = len(plan.statistics_spans) + len(plan.years)
        reporter.begin(num_passes * num_channels, (len(state.moments) + num_written) * num_channels)

        if constants is None:
            assert existing is not None
            metadata = existing.metadata
        else:
            _write_constants(constants, output)
            statistics = _reuse_statistics(statistics_from, plan) or _compute_statistics(
                source, plan, constants, state, reporter.advance
            )
            metadata = Metadata(
                plan.channels,
                plan.constants,
                tuple(source.grid.latitude),
                tuple(source.grid.longitude),
                plan.step_hours,
                **statistics,
                statistics_years=plan.statistics_years,
                statistics_from=plan.statistics_from,
                on_nan=plan.on_nan,
                notices=(),
                years=(),
            )
        for span in to_write:
            _write_year(source, plan, metadata, output, span, reporter)
        notices = tuple(dict.fromkeys((*metadata.notices, *source.notices)))
        years = (*metadata.years, *(span.year for span in plan.years))
        finished = replace(metadata, notices=notices, years=years)
        write_metadata(output, FORMAT, finished=asdict(finished), begun=None)
    return WeatherStore.open(output)


@dataclass(frozen=True)
class YearSpan:
    """Every `stride`-th step of a year of the source, from the step `first` on."""

    year: int
    first: int
    stride: int
    num_steps: int
    first_time: str


@dataclass(frozen=True)
class Plan:
    """Rows to write, and the steps from which the statistics are computed."""

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
    def num_bytes(self) -> int:
        """Size of the fields of the complete store."""
        num_rows = self.num_rows_before + sum(span.num_steps for span in self.years)
        return num_rows * len(self.channels) * self.shape[0] * self.shape[1] * DTYPE.itemsize

    def short_years(self) -> list[str]:
        """Describes the years that are incomplete in the data."""
        counts = {span.year: span.num_steps + span.first // span.stride for span in self.years}
        return [text for year, count in counts.items() for text in describe_short_year(year, count, self.step_hours)]

    def options(self) -> dict[str, Any]:
        """Returns what all years of a store have in common, as plain values."""
        names = ("channels", "constants", "step_hours", "statistics_years", "statistics_from", "shape")
        plain = {name: getattr(self, name) for name in names}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


@dataclass
class _State:
    """What a stopped preparation has left, besides complete years: the statistics of some years."""

    output: Path
    plan: Plan
    finished: dict[str, Any] | None
    moments: dict[int, dict[str, Moments]]

    @classmethod
    def begin(cls, output: Path, plan: Plan, content: dict[str, Any]) -> _State:
        state = cls(output, plan, content.get("finished"), {})
        begun = content.get("begun")
        if begun is not None and (begun["moments"] or any((output / FIELDS).glob("[0-9]*"))):
            new = plan.options()
            changed = [name for name in new if new[name] != begun["options"].get(name)]
            if not _gives_the_same(begun["on_nan"], plan.on_nan):
                changed.append("on_nan")
            if changed:
                raise DataError(
                    f"{output} holds the beginning of another preparation, which differs in {', '.join(changed)}: run "
                    f"that one to its end, or delete {output}"
                )
            wanted = {span.year for span in plan.statistics_spans}
            for year, channels in begun["moments"].items():
                if int(year) in wanted:
                    state.moments[int(year)] = {name: Moments(*values) for name, values in channels.items()}
        state.write()
        return state

    def add_moments(self, year: int, moments: dict[str, Moments]) -> None:
        self.moments[year] = moments
        self.write()

    def write(self) -> None:
        moments = {
            str(year): {name: [value.count, value.mean, value.squares] for name, value in channels.items()}
            for year, channels in self.moments.items()
        }
        begun = {"options": self.plan.options(), "on_nan": self.plan.on_nan, "moments": moments}
        write_metadata(self.output, FORMAT, finished=self.finished, begun=begun)


def _is_written(output: Path, span: YearSpan) -> bool:
    if not (output / FIELDS / str(span.year)).is_dir():
        return False
    found = read_year(output, span.year)
    return (found.first_time, found.num_steps) == (span.first_time, span.num_steps)


def _gives_the_same(old: NaNPolicy, new: NaNPolicy) -> bool:
    # Under `refuse` no value was replaced, so that another policy can resume.
    return old in (new, "refuse") or (old, new) == ("zero-tisr", "zero")


def make_plan(
    source: WeatherSource, wanted: Preparation, existing: WeatherStore | None, statistics_from: WeatherStore | None
) -> Plan:
    """Checks the options against the data and against the finished store to which years are added."""
    channels, constants = wanted.channels, wanted.constants
    step_hours = source.step_hours if wanted.step_hours is None else wanted.step_hours
    if step_hours % source.step_hours or 24 % step_hours:
        raise DataError(
            f"--step-hours {step_hours} must divide 24 and be a multiple of the {source.step_hours} hours between the "
            "steps of the data"
        )
    _check_names(source, channels, constants)
    years = _year_range("--years", wanted.years)
    if existing is not None:
        _check_same_options(existing, source, wanted, step_hours)
        if statistics_from is not None:
            _check_same_statistics(existing, statistics_from)
        years, last = [year for year in years if year not in existing.years()], existing.years()[-1]
        if years and years[0] < last:
            raise DataError(
                f"{existing.path} ends with {last}, and only later years can be added, not {years[0]}: prepare all "
                "years into a new store"
            )
    statistics_years, in_statistics = wanted.statistics_years, []
    reused = existing or statistics_from
    if reused is not None:
        if statistics_years not in (None, reused.statistics_years):
            first, last = reused.statistics_years
            raise DataError(
                f"the statistics of {reused.path} are of {first} to {last}, not of --statistics-years "
                f"{statistics_years[0]} {statistics_years[1]}: leave that option out"
            )
        reused.channel_indices(channels)
        reused.constant_indices(constants)
        statistics_years = reused.statistics_years
    else:
        statistics_years = statistics_years or DEFAULT_STATISTICS_YEARS
        in_statistics = _year_range("--statistics-years", statistics_years)
    all_years = sorted({*years, *in_statistics})
    missing = [year for year in all_years if year not in source.years]
    if missing:
        raise DataError(
            f"the data lack {describe_years(missing)}, which --years or --statistics-years ask for; there are "
            f"{describe_years(source.years)}"
        )
    source.check(channels, all_years)
    spans = {year: _find_span(source, year, channels, step_hours) for year in all_years}
    return Plan(
        channels=channels,
        constants=constants,
        step_hours=step_hours,
        on_nan=wanted.on_nan,
        statistics_years=statistics_years,
        statistics_from=None if statistics_from is None else statistics_from.checksum,
        shape=source.grid.shape,
        num_rows_before=0 if existing is None else len(existing.times),
        years=tuple(spans[year] for year in years),
        statistics_spans=tuple(spans[year] for year in in_statistics),
    )


def _year_range(option: str, years: tuple[int, int]) -> list[int]:
    if years[0] > years[1]:
        raise DataError(f"{option} goes from the first to the last year, got {years[0]} {years[1]}")
    return list(range(years[0], years[1] + 1))


def _check_names(source: WeatherSource, channels: tuple[str, ...], constants: tuple[str, ...]) -> None:
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


def _check_same_options(existing: WeatherStore, source: WeatherSource, wanted: Preparation, step_hours: int) -> None:
    pairs = {
        "channels": (existing.channels, wanted.channels),
        "constants": (existing.constant_names, wanted.constants),
        "step-hours": (existing.step_hours, step_hours),
        "on-nan": (existing.metadata.on_nan, wanted.on_nan),
    }
    for name, (old, new) in pairs.items():
        if old != new:
            was, now = (" ".join(value) if isinstance(value, tuple) else value for value in (old, new))
            raise DataError(
                f"{existing.path} was prepared with --{name} {was}, not {now}: years are added with the same options "
                "only; otherwise prepare a new store"
            )
    if existing.grid != source.grid:
        raise DataError(
            f"{existing.path} has a grid of {existing.grid.shape}, the data one of {source.grid.shape} or with other "
            "coordinates: prepare a new store"
        )


def _check_same_statistics(existing: WeatherStore, statistics_from: WeatherStore) -> None:
    indices = statistics_from.channel_indices(existing.channels)
    if (existing.mean != statistics_from.mean[indices]).any() or (existing.std != statistics_from.std[indices]).any():
        raise DataError(
            f"{existing.path} was not normalised with the statistics of {statistics_from.path}: leave out "
            "--statistics-from, or prepare a new store"
        )


def _find_span(source: WeatherSource, year: int, channels: tuple[str, ...], step_hours: int) -> YearSpan:
    """Returns the steps at the hours 0, step, 2 * step, ... of each day at which every channel is defined."""
    times = source.times(year)
    first = _count_undefined(source, year, times, channels)
    hours = times[first:].astype("datetime64[h]").astype(np.int64)
    on_step = np.flatnonzero(hours % step_hours == 0)
    if not len(on_step):
        raise DataError(f"the year {year} has no step at a multiple of {step_hours} hours; choose another --step-hours")
    first += int(on_step[0])
    stride = step_hours // source.step_hours
    kept = times[first::stride]
    if not (np.diff(kept) == np.timedelta64(step_hours, "h")).all():
        raise DataError(f"the times of {year} are not {step_hours} hours apart everywhere: see smoe data check")
    return YearSpan(year, first, stride, len(kept), str(kept[0].astype("datetime64[h]")))


def _count_undefined(source: WeatherSource, year: int, times: np.ndarray, channels: tuple[str, ...]) -> int:
    """Returns the number of leading steps at which a sum over past hours has no value anywhere."""
    if year - 1 in source.years:
        return 0
    most = 0
    for channel in channels:
        if VARIABLES[parse_channel(channel).variable].is_accumulated:
            values = source.read(channel, year)
            num_steps = next((step for step, field in enumerate(values) if not np.isnan(field).all()), len(values))
            is_short = num_steps < len(times) and times[num_steps] - times[0] <= _LONGEST_UNDEFINED
            most = max(most, num_steps if is_short else 0)
    return most


def _read_span(source: WeatherSource, channel: str, span: YearSpan, on_nan: NaNPolicy) -> tuple[np.ndarray, int]:
    """Returns the fields `(T, H, W)` of a channel at these steps, and the number of replaced NaNs."""
    values, times = source.read(channel, span.year), source.times(span.year)
    expected = (len(times), *source.grid.shape)
    if values.shape != expected:
        raise DataError(f"{channel} of {span.year} has the shape {values.shape}, expected {expected}")
    kept = slice(span.first, None, span.stride)
    return _replace_missing(channel, values[kept], times[kept], source.grid, on_nan)


def _replace_missing(
    channel: str, values: np.ndarray, times: np.ndarray, grid: Grid, on_nan: NaNPolicy
) -> tuple[np.ndarray, int]:
    # With the policy `mean` NaNs stay, because the mean is not known here.
    num_missing = 0
    for first in range(0, len(values), _STEPS_PER_PIECE):
        piece = values[first : first + _STEPS_PER_PIECE]
        is_wrong = np.isinf(piece)
        if channel == PRECIPITATION:
            is_wrong |= piece <= -PRECIPITATION_EPSILON
        if is_wrong.any():
            place, value = _first_place(is_wrong, times[first:], grid), piece[is_wrong][0]
            raise DataError(f"{channel} is {value:g} at {place}, which no policy covers: repair the file")
        num_missing += int(np.isnan(piece).sum())
    if not num_missing or on_nan == "mean":
        return values, num_missing
    if on_nan == "zero" or (on_nan == "zero-tisr" and channel == "tisr"):
        return np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf), num_missing
    year = str(times[0].astype("datetime64[Y]"))
    raise DataError(
        f"{channel} holds {num_missing:,} NaN in {year}, {num_missing / values.size:.2%} of its values, the first at "
        f"{_first_place(np.isnan(values), times, grid)}: repair the file, leave the channel out of --channels, or "
        "choose what replaces them with --on-nan"
    )


def _first_place(is_there: np.ndarray, times: np.ndarray, grid: Grid) -> str:
    step, row, column = np.unravel_index(int(is_there.argmax()), is_there.shape)
    time = times[step].astype("datetime64[h]")
    return f"{time} h, latitude {grid.latitude[row]:g}, longitude {grid.longitude[column]:g}"


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations of values that are added piece by piece, in float64."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, values: np.ndarray) -> Moments:
        """Returns the moments with one more piece of values; NaNs do not count."""
        values = values[~np.isnan(values)]
        if not values.size:
            return self
        mean = float(values.mean(dtype=np.float64))
        return self.merge(Moments(values.size, mean, float(np.square(values - mean).sum(dtype=np.float64))))

    def merge(self, other: Moments) -> Moments:
        """Returns the moments of both. A plain sum of squares would lose the digits in which geopotential varies."""
        count = self.count + other.count
        if not count:
            return self
        distance = other.mean - self.mean
        return Moments(
            count,
            self.mean + distance * other.count / count,
            self.squares + other.squares + distance**2 * self.count * other.count / count,
        )

    def mean_and_std(self, channel: str) -> tuple[float, float]:
        """Returns what a channel is normalised with; the mean of precipitation is 0, so that no rain stays 0."""
        if not self.count:
            raise DataError(f"channel {channel} holds no value in the statistics years: leave it out of --channels")
        std = math.sqrt(self.squares / self.count)
        # Rounding alone gives a constant a deviation of about 1e-16 of its size.
        if not std > 1e-9 * abs(self.mean):
            raise DataError(
                f"channel {channel} has the value {self.mean:g} everywhere in the statistics years and cannot be "
                "normalised: leave it out of --channels, or choose other --statistics-years"
            )
        return (0.0 if channel == PRECIPITATION else self.mean), std


def _compute_statistics(
    source: WeatherSource, plan: Plan, constants: np.ndarray, state: _State, advance: Callable[[str], None]
) -> dict[str, tuple[float, ...]]:
    of_constants = [
        Moments().add(values.astype(np.float64)).mean_and_std(name)
        for name, values in zip(plan.constants, constants, strict=True)
    ]
    for span in plan.statistics_spans:
        if span.year in state.moments:
            continue
        moments: dict[str, Moments] = {}
        for channel in plan.channels:
            values, _ = _read_span(source, channel, span, plan.on_nan)
            total = Moments()
            for first in range(0, len(values), _STEPS_PER_PIECE):
                total = total.add(transform(channel, values[first : first + _STEPS_PER_PIECE]))
            moments[channel] = total
            advance(f"statistics {span.year} {channel}")
        state.add_moments(span.year, moments)
    of_channels = []
    for channel in plan.channels:
        total = Moments()
        for span in plan.statistics_spans:
            total = total.merge(state.moments[span.year][channel])
        of_channels.append(total.mean_and_std(channel))
    return {
        "mean": tuple(mean for mean, _ in of_channels),
        "std": tuple(std for _, std in of_channels),
        "constant_mean": tuple(mean for mean, _ in of_constants),
        "constant_std": tuple(std for _, std in of_constants),
    }


def _reuse_statistics(store: WeatherStore | None, plan: Plan) -> dict[str, tuple[float, ...]]:
    if store is None:
        return {}
    channels, constants = store.channel_indices(plan.channels), store.constant_indices(plan.constants)
    chosen = {"mean": channels, "std": channels, "constant_mean": constants, "constant_std": constants}
    return {name: tuple(getattr(store.metadata, name)[index] for index in indices) for name, indices in chosen.items()}


def _read_constants(source: WeatherSource, names: tuple[str, ...]) -> np.ndarray:
    constants = np.empty((len(names), *source.grid.shape), DTYPE)
    for index, name in enumerate(names):
        constants[index] = source.read_constant(name)
        num_wrong = int((~np.isfinite(constants[index])).sum())
        if num_wrong:
            raise DataError(f"the constant {name} is not finite at {num_wrong} points: repair the file")
    return constants


def _write_constants(constants: np.ndarray, output: Path) -> None:
    # An array has at least one row.
    shape = (max(1, len(constants)), *constants.shape[1:])
    shutil.rmtree(output / CONSTANTS, ignore_errors=True)
    array = create_array(output / CONSTANTS, shape, ("constant", "lat", "lon"), shape[0])
    array[:] = constants if len(constants) else np.zeros(shape, DTYPE)


def _write_year(
    source: WeatherSource, plan: Plan, metadata: Metadata, output: Path, span: YearSpan, reporter: ProgressBar
) -> None:
    import zarr

    zarr.open_group(output / FIELDS, mode="a")
    shape = (span.num_steps, len(plan.channels), *plan.shape)
    num_filled: dict[str, int] = {}
    record = {
        "year": span.year,
        "first_time": span.first_time,
        "num_steps": span.num_steps,
        "num_dropped": span.first,
        "num_filled": num_filled,
    }
    with written_by_map(output / FIELDS / str(span.year), shape, ("time", "channel", "lat", "lon"), record) as file:
        for index, channel in enumerate(plan.channels):
            values, count = _read_span(source, channel, span, plan.on_nan)
            if count:
                num_filled[channel] = count
            # Mapped for one channel, so that the process does not hold the pages of a whole year.
            rows = np.memmap(file, DTYPE, "r+", shape=shape)
            mean, std = metadata.mean[index], metadata.std[index]
            for first in range(0, len(values), _STEPS_PER_PIECE):
                piece = transform(channel, values[first : first + _STEPS_PER_PIECE])
                # Values still missing become the mean, which is 0 in normalised units.
                rows[first : first + _STEPS_PER_PIECE, index] = np.nan_to_num((piece - mean) / std, nan=0.0)
            del rows
            reporter.advance(f"writing {span.year} {channel}")
