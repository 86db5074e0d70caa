"""Writes a weather store year by year. Preparations are resumable: a kill loses at most one year of work."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from smoe.errors import DataError
from smoe.gridded._output import check_disk
from smoe.gridded.field_files import DTYPE, crc32_of_rows
from smoe.gridded.statistics import STEPS_PER_PIECE, transform
from smoe.gridded.store_folder import only_process
from smoe.training.progress import ProgressBar
from smoe_paper.weather.data.journal import Journal
from smoe_paper.weather.data.prepare_plan import Plan, Preparation, make_plan
from smoe_paper.weather.data.prepare_statistics import (
    begin_metadata,
    compute_statistics,
    read_constants,
    write_constants,
)
from smoe_paper.weather.data.source import WeatherSource
from smoe_paper.weather.data.store import WeatherStore
from smoe_paper.weather.data.store_format import (
    CONSTANTS_FILE,
    FIELDS_FILE,
    METADATA_FILE,
    PREPARATION_FILE,
    Metadata,
    StoredYear,
)
from smoe_paper.weather.data.year_spans import YearSpan, read_span

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
