"""Writes a store, resumably."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from smoe._integrity import checksum, differences, read_checked_json, write_checked_json
from smoe.errors import DataError
from smoe.gridded import check_disk
from smoe.training.progress import ProgressBar
from smoe_paper.atmosphere.stores import DTYPE, crc32_of_rows, describe_years, only_process
from smoe_paper.ens10.data.efi import Part, compute_part, find_parts
from smoe_paper.ens10.data.fields import LEAD, DatedFields, years_of
from smoe_paper.ens10.data.open_ens10 import open_efi, open_truth
from smoe_paper.ens10.data.preprocessed import check_released
from smoe_paper.ens10.data.samples import check_skill
from smoe_paper.ens10.data.source import EnsembleSource, Forecast
from smoe_paper.ens10.data.store import (
    EFI,
    FORMAT,
    MEMBERS,
    METADATA_FILE,
    NORMALISATION,
    OUR_FILES,
    PREPARATION_FILE,
    STATISTICS,
    TRUTH,
    VERSION,
    EfiOrigin,
    EnsembleStore,
    Metadata,
    Plan,
    StatisticsYears,
    point_statistics,
)

DEFAULT_TRAIN_YEARS = (1998, 2015)


@dataclass(frozen=True)
class Preparation:
    """Options of the preparation of a store.

    Attributes:
        train_years: First and last year of training, by the dates for which forecasts are valid.
        normalisation: `training` takes statistics at each point over the training years; `released` over all dates, as
            in ENS-10's release, which includes the test years.
        efi: `auto` reads `efi_*.nc` if it exists, or computes the index from the members, if these exist.
    """

    train_years: tuple[int, int] = DEFAULT_TRAIN_YEARS
    normalisation: StatisticsYears = "training"
    efi: Literal["auto", "file", "computed", "none"] = "auto"


def make_plan(
    source: EnsembleSource, truth: DatedFields, efi_file: DatedFields | None, wanted: Preparation
) -> tuple[Plan, list[str]]:
    """Checks the options against the available data.

    Returns:
        The plan, and messages about it.

    Raises:
        DataError: If something is missing; the message contains the remedy.
    """
    starts, notices = _with_truth(source, truth)
    first, last = wanted.train_years
    if first > last:
        raise DataError(f"--train-years goes from the first to the last year, got {first} {last}")
    years = years_of(starts + LEAD)
    if not ((years >= first) & (years <= last)).any():
        found = describe_years(tuple(sorted(set(years.tolist()))))
        raise DataError(f"no forecast is for {first} to {last}; there are {found}: choose other --train-years")
    absent = tuple(year for year in range(first, last + 1) if year not in years)
    if absent:
        notices.append(f"of the training years, {describe_years(absent)} are not there")
    if wanted.normalisation == "released":
        notices.append("normalised with statistics of all dates, test years included, as in the release of ENS-10")
    efi, efi_years, said = _choose_efi(source, efi_file, wanted, starts)
    plan = Plan(
        task=source.task.name,
        num_members=source.num_members,
        starts=tuple(map(str, starts)),
        latitude=source.grid.latitude,
        longitude=source.grid.longitude,
        has_members=source.has_members,
        efi=efi,
        efi_years=efi_years,
        train_years=wanted.train_years,
        normalisation=wanted.normalisation,
    )
    return plan, notices + said


def _with_truth(source: EnsembleSource, truth: DatedFields) -> tuple[np.ndarray, list[str]]:
    valid = source.starts + LEAD
    # The last forecasts of a release are valid after the end of its truth.
    is_inside = (valid >= truth.dates[0]) & (valid <= truth.dates[-1])
    lacking = np.setdiff1d(valid[is_inside], truth.dates)
    if not is_inside.any() or len(lacking):
        first = lacking[0] if len(lacking) else valid[0]
        raise DataError(
            f"{truth.where} lacks {len(lacking) or len(valid)} of {len(valid)} dates that forecasts are for, such as "
            f"{first} (start {first - LEAD}); it has {truth.dates[0]} to {truth.dates[-1]}"
        )
    outside = valid[~is_inside]
    notices = [f"{len(outside)} forecasts are for times without truth, left out: {outside[0]}"] if len(outside) else []
    return source.starts[is_inside], notices


def _choose_efi(
    source: EnsembleSource, efi_file: DatedFields | None, wanted: Preparation, starts: np.ndarray
) -> tuple[EfiOrigin | None, tuple[int, int], list[str]]:
    start_years = years_of(starts)
    years = (wanted.train_years[1] + 1, int(start_years.max()))
    if wanted.efi == "none":
        return None, years, []
    if efi_file is not None and wanted.efi in ("auto", "file"):
        if not np.isin(efi_file.dates, starts + LEAD).any():
            raise DataError(f"{efi_file.where} has none of the dates that forecasts are for; leave it away")
        return "file", years, [f"the extreme forecast index is that of {efi_file.where}"]
    if wanted.efi == "file":
        raise DataError(f"there is no efi_{source.task.name}.nc: put it beside the other files, or leave out --efi")
    if not source.has_members:
        if wanted.efi == "computed":
            raise DataError(
                "the extreme forecast index is computed from the members, which are not there: add ensemble/"
            )
        return None, years, ["no extreme forecast index: there is no file of it, and there are no members"]
    if years[0] > years[1]:
        return None, years, [f"no extreme forecast index: no forecast starts after {wanted.train_years[1]}"]
    return "computed", years, []


class Journal:
    """Records in `preparation.json` what is written and on the disk.

    Attributes:
        rows: Checksums of each forecast that is written, by its start and the file.
        steps: Names of other finished steps: channels of the normalisation, parts of the index.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._path = folder / PREPARATION_FILE
        self._plan = plan.to_plain()
        self.rows: dict[str, dict[str, int]] = {}
        self.steps: list[str] = []

    @classmethod
    def open(cls, folder: Path, plan: Plan) -> Journal:
        """Returns a new journal, or the existing one of the same plan.

        Raises:
            DataError: If the existing journal has another plan.
        """
        journal = cls(folder, plan)
        if journal._path.is_file():
            content = read_checked_json(journal._path, FORMAT, VERSION)
            check_same_plan(content["plan"], plan, f"{folder} holds the beginning of another preparation",
                            f"run that one to its end, or delete {folder}")  # fmt: skip
            journal.rows, journal.steps = content["rows"], content["steps"]
        return journal

    def add_rows(self, rows: dict[str, dict[str, int]]) -> None:
        """Records that forecasts are written; they must have reached the disk."""
        self.rows.update(rows)
        self._write()

    def add_step(self, name: str) -> None:
        """Records that a step is finished; its output must have reached the disk."""
        self.steps.append(name)
        self._write()

    def _write(self) -> None:
        content: dict[str, Any] = {"plan": self._plan, "rows": self.rows, "steps": self.steps}
        write_checked_json(self._path, content, FORMAT, VERSION)


def is_finished(folder: Path, plan: Plan) -> bool:
    """Returns whether the folder holds the planned store, complete.

    Raises:
        DataError: If it holds another store.
    """
    if not (folder / METADATA_FILE).is_file():
        return False
    existing = Metadata.read(folder).plan.to_plain()
    check_same_plan(existing, plan, f"{folder} holds another store", "choose another folder for this one")
    return True


def check_same_plan(old: dict[str, Any], plan: Plan, what: str, remedy: str) -> None:
    """Refuses a plan that differs from the existing one, and names the differences."""
    new = plan.to_plain()
    if checksum(old) != checksum(new):
        raise DataError(f"{what}, which differs in {', '.join(differences(old, new))}: {remedy}")


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
