"""Makes ensemble stores: checks the options against the data, and writes forecast by forecast."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smoe.errors import DataError
from smoe_paper.atmosphere.fields import describe_years, years_of
from smoe_paper.atmosphere.store import DTYPE, Moments, Rows, is_finished, only_writer, write_metadata
from smoe_paper.ens10.efi import climate_windows, compute_part, parts_of
from smoe_paper.ens10.source import LEAD, DatedFields, EnsembleSource, open_efi, open_truth
from smoe_paper.ens10.store import FORMAT, EnsembleStore, Plan

if TYPE_CHECKING:
    from smoe.training.progress import ProgressBar
    from smoe_paper.ens10.commands import Preparation

_MAX_DATES = 24
_FIELDS_PER_PIECE = 16


def make_plan(
    source: EnsembleSource, truth: DatedFields, efi_file: DatedFields | None, wanted: Preparation
) -> tuple[Plan, list[str]]:
    """Checks the options against the available data; returns the plan, and messages about it."""
    valid, notices = source.starts + LEAD, []
    # The last forecasts of a release are valid after the end of its truth.
    is_inside = (valid >= truth.dates[0]) & (valid <= truth.dates[-1])
    lacking = np.setdiff1d(valid[is_inside], truth.dates)
    if not is_inside.any() or len(lacking):
        raise DataError(
            f"{truth.where} lacks dates that forecasts are for, such as {[*lacking, valid[0]][0]}; it has "
            f"{truth.dates[0]} to {truth.dates[-1]}"
        )
    if not is_inside.all():
        notices.append(f"{(~is_inside).sum()} forecasts are for times without truth, left out: {valid[~is_inside][0]}")
    starts, (first, last) = source.starts[is_inside], wanted.train_years
    years = years_of(starts + LEAD)
    if not ((years >= first) & (years <= last)).any():
        found = describe_years(sorted(set(years.tolist())))
        raise DataError(f"no forecast is for {first} to {last}; there are {found}: choose other --train-years")
    absent = sorted(set(range(first, last + 1)) - set(years.tolist()))
    if absent:
        notices.append(f"of the training years, {describe_years(absent)} are not there")
    efi = None
    if efi_file is not None and np.isin(efi_file.dates, starts + LEAD).any():
        efi = "file"
    elif years_of(starts).max() > last:
        efi = "computed"
    else:
        notices.append("no extreme forecast index: no file has it, and no forecasts of years after training are there")
    plan = Plan(
        source.task.name,
        source.num_members,
        tuple(map(str, starts)),
        source.grid.latitude,
        source.grid.longitude,
        efi,
        wanted.train_years,
    )
    return plan, notices


def prepare(
    source: EnsembleSource,
    root: Path,
    output: Path,
    wanted: Preparation,
    progress: ProgressBar,
    truth_root: Path | None = None,
) -> EnsembleStore:
    """Writes a store, or resumes an unfinished one after the last forecast that it has read.

    The forecasts are read once; one of them, with the members of one variable, is in memory at a time.
    """
    truth = open_truth(truth_root or root, source.task, source.grid)
    efi_file = open_efi(root, source.task, source.grid)
    plan, notices = make_plan(source, truth, efi_file, wanted)
    with only_writer(output, plan.shapes, plan.num_bytes) as size:
        for notice in notices:
            progress.notify(notice)
        if is_finished(output, FORMAT, plan):
            progress.notify(f"{output} holds these forecasts already: nothing to do")
            return EnsembleStore.open(output)
        progress.notify(f"{len(plan.starts):,} forecasts, {plan.task}, {plan.num_members} members; {size}")
        write_metadata(output, FORMAT, plan, None)
        _write_forecasts(source, truth, plan, output, progress)
        valid = np.array(plan.starts, "datetime64[D]") + LEAD
        check_skill(Rows(output / "statistics", 2 * source.task.target_index), Rows(output / "truth"), valid)
        _write_normalisation(plan, valid, output, progress)
        if plan.efi is not None:
            known = _compute_efi(plan, output, progress) if plan.efi == "computed" else _read_efi(efi_file, valid)
            array = _create(output, plan, "efi", anew=True)
            for row in range(len(plan.starts)):
                array[row] = known.get(row, np.full(plan.shapes["efi"][1:], np.nan, DTYPE))
        write_metadata(output, FORMAT, plan, {"notices": notices})
    return EnsembleStore.open(output)


def _create(output: Path, plan: Plan, name: str, *, anew: bool = False) -> Rows:
    if anew:
        shutil.rmtree(output / name, ignore_errors=True)
    middle = {"statistics": ("date", "channel"), "members": ("date", "member"), "normalisation": ("kind", "channel")}
    return Rows.create(output / name, plan.shapes[name], (*middle.get(name, ("date",)), "lat", "lon"), by_row=True)


def _write_forecasts(
    source: EnsembleSource, truth: DatedFields, plan: Plan, output: Path, progress: ProgressBar
) -> None:
    arrays = {name: _create(output, plan, name) for name in ("statistics", "truth", "members")}
    missing = {rows.start for array in arrays.values() for rows in array.missing()}
    # The plan excludes forecasts without truth.
    row_of = {start: row for row, start in enumerate(plan.starts) if row in missing}
    progress.begin(len(plan.starts), len(plan.starts) - len(row_of))
    for start in source.order:
        row = row_of.get(str(start))
        if row is not None:
            statistics, members = source.read(start)
            fields = {"statistics": statistics, "truth": truth.read(start + LEAD), "members": members}
            for name, array in arrays.items():
                array[row] = fields[name]
            progress.advance(f"reading {start}")


def _write_normalisation(plan: Plan, valid: np.ndarray, output: Path, progress: ProgressBar) -> None:
    years = years_of(valid)
    first, last = plan.train_years
    rows, maps = np.flatnonzero((years >= first) & (years <= last)), np.empty(plan.shapes["normalisation"], DTYPE)
    progress.begin(maps.shape[1], 0)
    for channel in range(maps.shape[1]):
        fields, moments = Rows(output / "statistics", channel), Moments()
        for place in range(0, len(rows), _FIELDS_PER_PIECE):
            piece = [fields[row] for row in rows[place : place + _FIELDS_PER_PIECE]]
            moments.add(np.stack(piece).astype(np.float64))
        maps[0, channel], maps[1, channel] = moments.mean, moments.std
        progress.advance(f"normalisation {channel}")
    _create(output, plan, "normalisation", anew=True)[slice(0, 2)] = maps


def _read_efi(file: DatedFields | None, valid: np.ndarray) -> dict[int, np.ndarray]:
    assert file is not None
    return {row: file.read(date) for row, date in enumerate(valid) if date in file.dates}


def _compute_efi(plan: Plan, output: Path, progress: ProgressBar) -> dict[int, np.ndarray]:
    starts = np.array(plan.starts, "datetime64[D]")
    # All ten members are used, also if the statistics have five: the release weighs both tasks by one index.
    members = Rows(output / "members")
    found: dict[int, np.ndarray] = {}
    for year in range(plan.train_years[1] + 1, int(years_of(starts).max()) + 1):
        windows = climate_windows(starts, year)
        parts = parts_of(windows, members.shape) if windows else []
        found.update({row: np.empty(members.shape[2:], DTYPE) for row in windows})
        progress.begin(len(parts), 0)
        for rows in parts:
            for row, index in compute_part(windows, rows, members).items():
                found[row][rows] = index
            progress.advance(f"efi {year} rows {rows.start}-{rows.stop - 1}")
    return found


def check_skill(mean: np.ndarray | Rows, truth: np.ndarray | Rows, dates: np.ndarray) -> None:
    """Refuses forecasts that are mostly nearer to the truth of the date before or after.

    This finds shuffled or shifted times in files whose dates look right.
    """
    if len(dates) < 3:
        return
    rows = np.unique(np.linspace(1, len(dates) - 2, min(_MAX_DATES, len(dates) - 2)).round().astype(int))
    distances = [[float(np.abs(mean[row] - truth[row + shift]).mean()) for shift in (-1, 0, 1)] for row in rows]
    is_wrong = np.argmin(distances, axis=1) != 1
    if 2 * is_wrong.sum() > len(rows):
        raise DataError(
            f"{is_wrong.sum()} of {len(rows)} forecasts are nearer to the truth of a neighbouring date than to their "
            f"own, the first that for {dates[rows[np.argmax(is_wrong)]]}: times of forecasts or truth are shuffled or "
            "shifted; make both files again"
        )
