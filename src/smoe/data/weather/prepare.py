"""Writes a weather store, year by year, so that a kill at any moment costs at most the year under way."""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from smoe.atomic_files import write_atomically
from smoe.data.weather.errors import DataError
from smoe.data.weather.journal import Journal
from smoe.data.weather.missing_values import replace_missing
from smoe.data.weather.prepare_plan import Plan, Preparation, Span, check_disk, make_plan
from smoe.data.weather.source import WeatherSource
from smoe.data.weather.statistics import STEPS_PER_PIECE, Moments, add_year, transform
from smoe.data.weather.store import WeatherStore, crc32_of
from smoe.data.weather.store_format import (
    CONSTANTS_FILE,
    DTYPE,
    FIELDS_FILE,
    METADATA_FILE,
    PREPARATION_FILE,
    Metadata,
    StoredYear,
)

_LOCK_FILE = "lock"


class Reporter(Protocol):
    """Hears how far a preparation has come."""

    def say(self, text: str) -> None:
        """Something worth a line."""
        ...

    def begin(self, total: int, done: int) -> None:
        """So many channels of years are to be read, of which some were read before."""
        ...

    def advance(self, text: str) -> None:
        """One more is done; `text` says what is under way."""
        ...


def prepare(
    source: WeatherSource,
    output: Path,
    wanted: Preparation,
    reporter: Reporter,
    statistics_from: WeatherStore | None = None,
) -> WeatherStore:
    """Writes a store, goes on with one that was not finished, or adds later years to a finished one.

    The training years are read twice: once for the statistics, once to be written. At most one channel of one year is
    in memory.

    Args:
        source: where the fields are read from.
        output: folder of the store.
        wanted: what goes into it.
        reporter: hears of the progress.
        statistics_from: a store whose mean and std are used: for data to pretrain on, which are normalised like
            those of the fine-tuning.

    Raises:
        DataError: if something does not fit; nothing that was there is changed then.
    """
    output.mkdir(parents=True, exist_ok=True)
    with _only_process(output):
        existing = WeatherStore.open(output) if (output / METADATA_FILE).is_file() else None
        plan = make_plan(source, wanted, existing, statistics_from)
        for notice in source.notices:
            reporter.say(notice)
        if existing is not None and not plan.years:
            (output / PREPARATION_FILE).unlink(missing_ok=True)
            reporter.say(f"{output} holds these years already: nothing to do")
            return existing
        journal = Journal.open(output, plan, finished=() if existing is None else existing.years())
        if not journal.has_begun:
            _cut(output / FIELDS_FILE, plan.num_rows_before * plan.bytes_per_row)
        reporter.say(check_disk(plan, output))
        journal.begin()
        if journal.has_begun:
            reporter.say(f"going on: {len(journal.years)} of {len(plan.years)} years are written")
        num_channels = len(plan.channels)
        num_passes = len(plan.statistics_spans) + len(plan.years)
        reporter.begin(num_passes * num_channels, (len(journal.moments) + len(journal.years)) * num_channels)

        metadata = _describe(source, plan, existing, statistics_from)
        if existing is None and statistics_from is None:
            mean, std = _compute_statistics(source, plan, journal, reporter)
            metadata = replace(metadata, mean=mean, std=std)
        if existing is None:
            constants = _read_constants(source, plan)
            if statistics_from is None:
                metadata = _with_constant_statistics(metadata, constants)
            content = constants.astype(DTYPE).tobytes()
            write_atomically(output / CONSTANTS_FILE, lambda file: file.write(content))
            metadata = replace(metadata, constants_crc32=zlib.crc32(content))
        for number, span in enumerate(plan.years):
            if span.year not in journal.years:
                first_row = plan.num_rows_before + sum(before.num_steps for before in plan.years[:number])
                year = _write_year(source, plan, metadata, output / FIELDS_FILE, span, first_row, reporter)
                journal.add_year(year)
        written = tuple(journal.years[span.year] for span in plan.years)
        replace(metadata, years=metadata.years + written).write(output)
        (output / PREPARATION_FILE).unlink()
    return WeatherStore.open(output)


def _cut(path: Path, num_bytes: int) -> None:
    """Removes what a preparation that was given up has left behind the years of the store."""
    if path.is_file() and path.stat().st_size > num_bytes:
        os.truncate(path, num_bytes)


@contextmanager
def _only_process(output: Path) -> Iterator[None]:
    # The lock goes with the process, however it ends.
    with (output / _LOCK_FILE).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataError(f"another process is preparing {output}: wait for it, or stop it") from None
        yield


def _describe(
    source: WeatherSource, plan: Plan, existing: WeatherStore | None, statistics_from: WeatherStore | None
) -> Metadata:
    """The metadata as far as they are known before anything is read."""
    notices = tuple(source.notices)
    if existing is not None:
        old = existing.metadata
        return replace(old, notices=old.notices + tuple(text for text in notices if text not in old.notices))
    metadata = Metadata(
        channels=plan.channels,
        constant_names=plan.constants,
        latitude=tuple(source.grid.latitude),
        longitude=tuple(source.grid.longitude),
        step_hours=plan.step_hours,
        mean=(),
        std=(),
        constant_mean=(),
        constant_std=(),
        statistics_years=plan.statistics_years,
        statistics_from=None,
        on_nan=plan.on_nan,
        constants_crc32=0,
        notices=notices,
        years=(),
    )
    if statistics_from is None:
        return metadata
    other = statistics_from.metadata
    channels = statistics_from.channel_indices(plan.channels)
    constants = statistics_from.constant_indices(plan.constants)
    return replace(
        metadata,
        statistics_from=other.checksum,
        mean=tuple(other.mean[index] for index in channels),
        std=tuple(other.std[index] for index in channels),
        constant_mean=tuple(other.constant_mean[index] for index in constants),
        constant_std=tuple(other.constant_std[index] for index in constants),
    )


def _compute_statistics(
    source: WeatherSource, plan: Plan, journal: Journal, reporter: Reporter
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    for span in plan.statistics_spans:
        if span.year in journal.moments:
            continue
        moments: dict[str, Moments] = {}
        for channel in plan.channels:
            values, _ = _read(source, plan, channel, span)
            moments[channel] = add_year(Moments(), channel, values)
            reporter.advance(f"statistics {span.year} {channel}")
        journal.add_moments(span.year, moments)
    pairs = []
    for channel in plan.channels:
        total = Moments()
        for span in plan.statistics_spans:
            total = total.merge(journal.moments[span.year][channel])
        pairs.append(total.mean_and_std(channel))
    return tuple(mean for mean, _ in pairs), tuple(std for _, std in pairs)


def _read(source: WeatherSource, plan: Plan, channel: str, span: Span) -> tuple[np.ndarray, int]:
    """The steps of a year that go into the store, and how many NaNs were replaced."""
    values = source.read(channel, span.year)
    times = source.times(span.year)
    if values.shape != (len(times), *plan.shape):
        raise DataError(f"{channel} of {span.year} has the shape {values.shape}, expected {(len(times), *plan.shape)}")
    kept = slice(span.first, None, span.stride)
    return replace_missing(channel, values[kept], times[kept], source.grid, plan.on_nan)


def _read_constants(source: WeatherSource, plan: Plan) -> np.ndarray:
    constants = np.empty((len(plan.constants), *plan.shape), np.float32)
    for index, name in enumerate(plan.constants):
        constants[index] = source.read_constant(name)
        num_wrong = int((~np.isfinite(constants[index])).sum())
        if num_wrong:
            raise DataError(f"the constant {name} is not finite at {num_wrong} points: repair the file")
    return constants


def _with_constant_statistics(metadata: Metadata, constants: np.ndarray) -> Metadata:
    pairs = [
        Moments().add(values.astype(np.float64)).mean_and_std(name)
        for name, values in zip(metadata.constant_names, constants, strict=True)
    ]
    return replace(
        metadata, constant_mean=tuple(mean for mean, _ in pairs), constant_std=tuple(std for _, std in pairs)
    )


def _write_year(
    source: WeatherSource, plan: Plan, metadata: Metadata, path: Path, span: Span, first_row: int, reporter: Reporter
) -> StoredYear:
    num_filled: dict[str, int] = {}
    offset = first_row * plan.bytes_per_row
    with path.open("ab") as file:
        try:
            # A full disk shows here, and not as a crash in the middle of a mapped page.
            os.posix_fallocate(file.fileno(), offset, span.num_steps * plan.bytes_per_row)
        except OSError as error:
            raise DataError(f"no room for {span.year} in {path}: {error.strerror}; run again to go on") from error
    rows = np.memmap(path, DTYPE, "r+", offset=offset, shape=(span.num_steps, len(plan.channels), *plan.shape))
    for index, channel in enumerate(plan.channels):
        values, count = _read(source, plan, channel, span)
        if count:
            num_filled[channel] = count
        _normalise_into(rows[:, index], channel, values, metadata.mean[index], metadata.std[index])
        reporter.advance(f"writing {span.year} {channel}")
    rows.flush()
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return StoredYear(span.year, span.first_time, span.num_steps, span.first, num_filled, crc32_of(rows))


def _normalise_into(rows: np.ndarray, channel: str, values: np.ndarray, mean: float, std: float) -> None:
    for first in range(0, len(values), STEPS_PER_PIECE):
        piece = transform(channel, values[first : first + STEPS_PER_PIECE])
        # What was missing and is to be the mean is 0 in normalised units.
        rows[first : first + STEPS_PER_PIECE] = np.nan_to_num((piece - mean) / std, nan=0.0)
