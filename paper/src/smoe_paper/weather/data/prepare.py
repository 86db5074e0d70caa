"""Writes a store, resumably."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from smoe._files import write_atomically
from smoe._integrity import differences
from smoe.errors import DataError
from smoe.gridded import check_disk
from smoe.training.progress import ProgressBar
from smoe_paper.atmosphere.statistics import STEPS_PER_PIECE, Moments, add_year, transform
from smoe_paper.atmosphere.stores import DTYPE, crc32_of_rows, only_process
from smoe_paper.weather.data.prepare_plan import Plan, Preparation, make_plan
from smoe_paper.weather.data.source import WeatherSource
from smoe_paper.weather.data.store import (
    CONSTANTS_FILE,
    FIELDS_FILE,
    METADATA_FILE,
    PREPARATION_FILE,
    Metadata,
    NaNPolicy,
    StoredYear,
    WeatherStore,
    YearSpan,
    read_json,
    read_span,
    write_json,
)


class Journal:
    """Records in `preparation.json` the years whose statistics are known and the years that are written.

    Attributes:
        moments: Statistics of each channel, by year.
        years: Years that are written completely and on the disk.
        has_begun: Whether an earlier preparation has done a part.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._path = folder / PREPARATION_FILE
        self._plan = plan.to_plain()
        self.moments: dict[int, dict[str, Moments]] = {}
        self.years: dict[int, StoredYear] = {}
        self.has_begun = False

    @classmethod
    def open(cls, folder: Path, plan: Plan, finished: tuple[int, ...] = ()) -> Journal:
        """Returns a new journal, or the existing one of the same plan.

        After a refusal of NaNs, a preparation may resume with another policy, because no value was replaced before.

        Args:
            folder: Folder of the store.
            plan: Plan of the preparation.
            finished: Years of the finished store.

        Raises:
            DataError: If the existing journal has another plan.
        """
        journal = cls(folder, plan)
        if not journal._path.is_file():
            return journal
        content = read_json(journal._path)
        if content["plan"]["years"] and all(span["year"] in finished for span in content["plan"]["years"]):
            # Stopped after its last step: the store is complete, only the journal was not removed.
            return journal
        if not content["moments"] and not content["years"]:
            return journal
        changed = differences(content["plan"], journal._plan)
        if changed == ["on_nan"] and _gives_the_same(content["plan"]["on_nan"], plan.on_nan):
            changed = []
        if changed:
            raise DataError(
                f"{folder} holds the beginning of another preparation, which differs in {', '.join(changed)}: run "
                f"that one to its end, or delete {journal._path}"
            )
        for year, channels in content["moments"].items():
            journal.moments[int(year)] = {channel: Moments(*values) for channel, values in channels.items()}
        for year in content["years"]:
            journal.years[year["year"]] = StoredYear(**year)
        journal.has_begun = bool(journal.moments or journal.years)
        return journal

    def begin(self) -> None:
        """Writes the plan, before anything is done."""
        self._write()

    def add_moments(self, year: int, moments: dict[str, Moments]) -> None:
        """Records the statistics of a year."""
        self.moments[year] = moments
        self._write()

    def add_year(self, year: StoredYear) -> None:
        """Records that a year is written; it must have reached the disk."""
        self.years[year.year] = year
        self._write()

    def _write(self) -> None:
        content: dict[str, Any] = {
            "plan": self._plan,
            "moments": {
                str(year): {channel: [value.count, value.mean, value.squares] for channel, value in channels.items()}
                for year, channels in self.moments.items()
            },
            "years": [asdict(year) for year in self.years.values()],
        }
        write_json(self._path, content)


def _gives_the_same(old: NaNPolicy, new: NaNPolicy) -> bool:
    """Returns whether the results under the old policy, without a refusal, equal those under the new one."""
    return old == "refuse" or (old, new) == ("zero-tisr", "zero")


def begin_metadata(
    source: WeatherSource, plan: Plan, existing: WeatherStore | None, statistics_from: WeatherStore | None
) -> Metadata:
    """Returns the metadata that are known before anything is read: of an existing store, or without years."""
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
        statistics_from=plan.statistics_from,
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
        mean=tuple(other.mean[index] for index in channels),
        std=tuple(other.std[index] for index in channels),
        constant_mean=tuple(other.constant_mean[index] for index in constants),
        constant_std=tuple(other.constant_std[index] for index in constants),
    )


def compute_statistics(
    source: WeatherSource,
    plan: Plan,
    journal: Journal,
    advance: Callable[[str], None],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns mean and std of all channels over all steps of the statistics years; skips years in the journal."""
    for span in plan.statistics_spans:
        if span.year in journal.moments:
            continue
        moments: dict[str, Moments] = {}
        for channel in plan.channels:
            values, _ = read_span(source, channel, span=span, on_nan=plan.on_nan)
            moments[channel] = add_year(Moments(), channel, values)
            advance(f"statistics {span.year} {channel}")
        journal.add_moments(span.year, moments)
    pairs = []
    for channel in plan.channels:
        total = Moments()
        for span in plan.statistics_spans:
            total = total.merge(journal.moments[span.year][channel])
        pairs.append(total.mean_and_std(channel))
    return tuple(mean for mean, _ in pairs), tuple(std for _, std in pairs)


def read_constants(source: WeatherSource, names: tuple[str, ...]) -> np.ndarray:
    """Returns the constants in physical units, `(K, H, W)`.

    Raises:
        DataError: If one is missing or not finite.
    """
    constants = np.empty((len(names), *source.grid.shape), DTYPE)
    for index, name in enumerate(names):
        constants[index] = source.read_constant(name)
        num_wrong = int((~np.isfinite(constants[index])).sum())
        if num_wrong:
            raise DataError(f"the constant {name} is not finite at {num_wrong} points: repair the file")
    return constants


def write_constants(constants: np.ndarray, path: Path, metadata: Metadata) -> Metadata:
    """Writes the constants and returns the metadata with their checksum and, unless known, their statistics."""
    content = constants.tobytes()
    write_atomically(path, lambda file: file.write(content))
    metadata = replace(metadata, constants_crc32=zlib.crc32(content))
    if metadata.statistics_from is not None:
        return metadata
    pairs = [
        Moments().add(values.astype(np.float64)).mean_and_std(name)
        for name, values in zip(metadata.constant_names, constants, strict=True)
    ]
    return replace(
        metadata, constant_mean=tuple(mean for mean, _ in pairs), constant_std=tuple(std for _, std in pairs)
    )


_SMALLER = "fewer --years or --channels, or a larger --step-hours"
_OUR_FILES = {FIELDS_FILE, CONSTANTS_FILE, METADATA_FILE, PREPARATION_FILE}


def prepare(
    source: WeatherSource,
    output: Path,
    wanted: Preparation,
    reporter: ProgressBar,
    statistics_from: WeatherStore | None = None,
) -> WeatherStore:
    """Writes a store, resumes an unfinished one, or adds later years to a finished one.

    The training years are read twice: once for the statistics, once to be written. At most one channel of one year is
    in memory.

    Args:
        source: Source of the fields.
        output: Folder of the store.
        wanted: Options of the preparation.
        reporter: Receives progress and messages.
        statistics_from: A store whose mean and standard deviation are used, for pretraining data that are normalised
            like those of the fine-tuning.

    Raises:
        DataError: If the data cannot be used; existing files are then unchanged.
    """
    with only_process(output, _OUR_FILES):
        existing = WeatherStore.open(output) if (output / METADATA_FILE).is_file() else None
        plan = make_plan(source, wanted, existing, statistics_from)
        # Read before hours are spent on the statistics, and before the notices, which may include corrected constants.
        constants = read_constants(source, plan.constants) if existing is None else None
        for notice in (*source.notices, *plan.short_years()):
            reporter.notify(notice)
        if existing is not None and not plan.years:
            (output / PREPARATION_FILE).unlink(missing_ok=True)
            reporter.notify(f"{output} holds these years already: nothing to do")
            return existing
        journal = Journal.open(output, plan, finished=() if existing is None else existing.years())
        if not journal.has_begun:
            _cut(output / FIELDS_FILE, plan.num_rows_before * plan.bytes_per_row)
        num_channels = len(plan.channels)
        steps = f"{plan.num_new_rows:,} steps of {num_channels} channels in {len(plan.years)} years"
        reporter.notify(f"{steps}; {check_disk(output, plan.num_bytes, (FIELDS_FILE,), _SMALLER)}")
        journal.begin()
        if journal.has_begun:
            reporter.notify(f"resuming: {len(journal.years)} of {len(plan.years)} years are written")
        num_passes = len(plan.statistics_spans) + len(plan.years)
        num_done = len(journal.moments) + len(journal.years)
        reporter.begin(num_passes * num_channels, num_done * num_channels)

        metadata = begin_metadata(source, plan, existing, statistics_from)
        if constants is not None:
            metadata = write_constants(constants, output / CONSTANTS_FILE, metadata)
        if plan.statistics_spans:
            mean, std = compute_statistics(source, plan, journal, reporter.advance)
            metadata = replace(metadata, mean=mean, std=std)
        first_row = plan.num_rows_before
        for span in plan.years:
            if span.year not in journal.years:
                path = output / FIELDS_FILE
                journal.add_year(_write_year(source, plan, metadata, path, span, first_row, reporter))
            first_row += span.num_steps
        written = tuple(journal.years[span.year] for span in plan.years)
        replace(metadata, years=metadata.years + written).write(output)
        (output / PREPARATION_FILE).unlink()
    return WeatherStore.open(output)


def _cut(path: Path, num_bytes: int) -> None:
    """Removes the rows that an abandoned preparation has left behind the years of the store."""
    if path.is_file() and path.stat().st_size > num_bytes:
        os.truncate(path, num_bytes)


def _write_year(
    source: WeatherSource,
    plan: Plan,
    metadata: Metadata,
    path: Path,
    span: YearSpan,
    first_row: int,
    reporter: ProgressBar,
) -> StoredYear:
    """Writes the rows of a year and waits until they are on the disk."""
    num_filled: dict[str, int] = {}
    offset = first_row * plan.bytes_per_row
    with path.open("ab") as file:
        try:
            # A full disk causes an error here, and not a crash in the middle of a mapped page.
            os.posix_fallocate(file.fileno(), offset, span.num_steps * plan.bytes_per_row)
        except OSError as error:
            raise DataError(f"no room for {span.year} in {path}: {error.strerror}; run again to resume") from error
        shape = (span.num_steps, len(plan.channels), *plan.shape)
        for index, channel in enumerate(plan.channels):
            values, count = read_span(source, channel, span=span, on_nan=plan.on_nan)
            if count:
                num_filled[channel] = count
            # Mapped for one channel, so that the process does not hold the pages of a whole year.
            rows = np.memmap(path, DTYPE, "r+", offset=offset, shape=shape)
            _normalise_into(rows[:, index], channel, values, metadata.mean[index], metadata.std[index])
            del rows
            reporter.advance(f"writing {span.year} {channel}")
        os.fsync(file.fileno())
    crc32 = crc32_of_rows(path, offset, span.num_steps * plan.bytes_per_row)
    return StoredYear(span.year, span.first_time, span.num_steps, span.first, num_filled, crc32)


def _normalise_into(rows: np.ndarray, channel: str, values: np.ndarray, mean: float, std: float) -> None:
    for first in range(0, len(values), STEPS_PER_PIECE):
        piece = transform(channel, values[first : first + STEPS_PER_PIECE])
        # Values still missing become the mean, which is 0 in normalised units.
        rows[first : first + STEPS_PER_PIECE] = np.nan_to_num((piece - mean) / std, nan=0.0)
