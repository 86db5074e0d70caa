"""Writes an ensemble store. Preparations are resumable: a kill loses at most one file or a few dates of work."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Literal

import numpy as np

from smoe.errors import DataError
from smoe.gridded._output import check_disk
from smoe.gridded.field_files import DTYPE, crc32_of_rows
from smoe.gridded.store_folder import only_process
from smoe.training.progress import ProgressBar
from smoe_paper.ens10.data.dated_fields import DatedFields
from smoe_paper.ens10.data.dates import LEAD, years_of
from smoe_paper.ens10.data.efi_pass import Part, compute_part, find_parts
from smoe_paper.ens10.data.journal import Journal, is_finished
from smoe_paper.ens10.data.normalisation import point_statistics
from smoe_paper.ens10.data.open_ens10 import open_efi, open_truth
from smoe_paper.ens10.data.prepare_plan import Preparation, make_plan
from smoe_paper.ens10.data.released import check_released
from smoe_paper.ens10.data.skill import check_skill
from smoe_paper.ens10.data.source import EnsembleSource, Forecast
from smoe_paper.ens10.data.store import EnsembleStore
from smoe_paper.ens10.data.store_format import (
    EFI,
    MEMBERS,
    NORMALISATION,
    OUR_FILES,
    PREPARATION_FILE,
    STATISTICS,
    TRUTH,
    Metadata,
    Plan,
)


def prepare(
    source: EnsembleSource,
    root: Path,
    output: Path,
    wanted: Preparation,
    reporter: ProgressBar,
    truth_root: Path | None = None,
) -> EnsembleStore:
    """Writes a store, or resumes an unfinished one.

    The forecasts are read once. One of them, with the members of one variable, is in memory at a time; preprocessed
    files are read four dates at a time.

    Args:
        source: Source of the forecasts.
        root: Folder with `efi_*.nc` and `ENS10_*_normalized.nc`, if these exist.
        output: Folder of the store.
        wanted: Options of the preparation.
        reporter: Receives progress and messages.
        truth_root: Folder with `ERA5_*.nc`; None uses the root.

    Raises:
        DataError: If the data cannot be used.
    """
    truth = open_truth(truth_root or root, source.task, source.grid)
    efi_file = open_efi(root, source.task, source.grid)
    plan, notices = make_plan(source, truth, efi_file, wanted)
    with only_process(output, OUR_FILES):
        for notice in (*source.notices, *truth.notices, *notices):
            reporter.notify(notice)
        if is_finished(output, plan):
            (output / PREPARATION_FILE).unlink(missing_ok=True)
            reporter.notify(f"{output} holds these forecasts already: nothing to do")
            return EnsembleStore.open(output)
        journal = Journal.open(output, plan)
        _make_room(output, plan, reporter)
        if journal.rows:
            reporter.notify(f"resuming: {len(journal.rows)} of {len(plan.starts)} forecasts are written")
        starts = np.array(plan.starts, "datetime64[D]")
        parts = find_parts(starts, plan.efi_years, plan.shapes[MEMBERS]) if plan.efi == "computed" else []
        num_steps = len(plan.starts) + plan.shapes[NORMALISATION][1] + len(parts)
        reporter.begin(num_steps, len(journal.rows) + len(journal.steps))
        _write_forecasts(source, truth, plan, output, journal, reporter)
        statistics, of_truth = (_map(output, plan, name, "r") for name in (STATISTICS, TRUTH))
        check_skill(statistics[:, 2 * source.task.target_index], of_truth, starts + LEAD)
        _write_normalisation(plan, output, journal, reporter)
        if plan.normalisation == "released":
            notices += check_released(root, plan, statistics, _map(output, plan, NORMALISATION, "r"))
        if plan.efi == "file":
            assert efi_file is not None
            _copy_efi(efi_file, plan, output)
        elif plan.efi == "computed":
            _write_efi(plan, parts, output, journal, reporter)
        crc32 = {name: _checksums(output / name, plan, name, journal) for name in plan.shapes}
        Metadata(plan, crc32, source.kind, (*source.notices, *truth.notices, *notices)).write(output)
        (output / PREPARATION_FILE).unlink(missing_ok=True)
    return EnsembleStore.open(output)


def _make_room(output: Path, plan: Plan, reporter: ProgressBar) -> None:
    sizes = {name: plan.num_bytes(name) for name in plan.shapes}
    remedy = "or prepare without --efi, or from statistics alone"
    room = check_disk(output, sum(sizes.values()), tuple(sizes), remedy)
    reporter.notify(f"{len(plan.starts):,} forecasts, {plan.task}, {plan.num_members} members; {room}")
    for name, size in sizes.items():
        with (output / name).open("ab") as file:
            try:
                # A full disk causes an error here, and not a crash in the middle of a mapped page.
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                raise DataError(f"no room for {output / name}: {error.strerror}; run again to resume") from error


def _write_forecasts(
    source: EnsembleSource,
    truth: DatedFields,
    plan: Plan,
    output: Path,
    journal: Journal,
    reporter: ProgressBar,
) -> None:
    row_of = {start: row for row, start in enumerate(plan.starts)}
    # The plan excludes forecasts without truth.
    unread = [
        block
        for block in source.blocks()
        if any(str(start) in row_of and str(start) not in journal.rows for start in block.starts)
    ]
    for block in unread:
        written = {}
        for forecast in source.read(block):
            name = str(forecast.start)
            if name in row_of:
                written[name] = _write_forecast(forecast, truth, output, row_of[name])
                reporter.advance(f"reading {block.name}")
        _sync(output, plan)
        journal.add_rows(written)


def _write_forecast(forecast: Forecast, truth: DatedFields, output: Path, row: int) -> dict[str, int]:
    fields = {STATISTICS: forecast.statistics, TRUTH: truth.read(np.array([forecast.start + LEAD]))[0]}
    if forecast.members is not None:
        fields[MEMBERS] = forecast.members
    crc32 = {}
    for name, values in fields.items():
        content = np.ascontiguousarray(values, DTYPE)
        with (output / name).open("r+b") as file:
            file.seek(row * content.nbytes)
            file.write(content.data)
        crc32[name] = zlib.crc32(content.data)
    return crc32


def _write_normalisation(plan: Plan, output: Path, journal: Journal, reporter: ProgressBar) -> None:
    years = years_of(np.array(plan.starts, "datetime64[D]") + LEAD)
    first, last = plan.train_years
    is_used = (years >= first) & (years <= last) if plan.normalisation == "training" else np.ones(len(years), bool)
    for channel in range(plan.shapes[NORMALISATION][1]):
        step = f"normalisation {channel}"
        if step in journal.steps:
            continue

        def open_channel(channel: int = channel) -> np.ndarray:
            return _map(output, plan, STATISTICS, "r")[:, channel]

        mean, std = point_statistics(open_channel, np.flatnonzero(is_used))
        maps = _map(output, plan, NORMALISATION, "r+")
        maps[0, channel], maps[1, channel] = mean, std
        maps.flush()
        journal.add_step(step)
        reporter.advance(step)


def _copy_efi(efi_file: DatedFields, plan: Plan, output: Path) -> None:
    efi = _map(output, plan, EFI, "r+")
    for row, start in enumerate(np.array(plan.starts, "datetime64[D]")):
        is_there = start + LEAD in efi_file.dates
        efi[row] = efi_file.read(np.array([start + LEAD]))[0] if is_there else np.nan
    efi.flush()


def _write_efi(plan: Plan, parts: list[Part], output: Path, journal: Journal, reporter: ProgressBar) -> None:
    if not any(part.name in journal.steps for part in parts):
        unknown = np.full(plan.shapes[EFI][1:], np.nan, DTYPE).tobytes()
        with (output / EFI).open("r+b") as file:
            for _ in plan.starts:
                file.write(unknown)
            os.fsync(file.fileno())
    for part in parts:
        if part.name in journal.steps:
            continue
        # Mapped for one part, so that the process does not hold the pages of all. All ten members are used, also if the
        # statistics have five: the release weighs both tasks by one index.
        efi = _map(output, plan, EFI, "r+")
        compute_part(part, _map(output, plan, MEMBERS, "r"), efi)
        efi.flush()
        journal.add_step(part.name)
        reporter.advance(part.name)


def _map(output: Path, plan: Plan, name: str, mode: Literal["r", "r+"]) -> np.memmap:
    return np.memmap(output / name, DTYPE, mode, shape=plan.shapes[name])


def _sync(output: Path, plan: Plan) -> None:
    for name in plan.shapes:
        with (output / name).open("rb") as file:
            os.fsync(file.fileno())


def _checksums(path: Path, plan: Plan, name: str, journal: Journal) -> list[int]:
    if name in (STATISTICS, TRUTH, MEMBERS):
        return [journal.rows[start][name] for start in plan.starts]
    num_rows = plan.shapes[name][0]
    size = plan.num_bytes(name) // num_rows
    return [crc32_of_rows(path, row * size, size) for row in range(num_rows)]
