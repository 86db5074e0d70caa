"""Makes ensemble stores: checks the options against the data, and writes forecast by forecast."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smoe.errors import DataError
from smoe.gridded import FieldMoments
from smoe_paper.atmosphere.fields import describe_years, years_of
from smoe_paper.atmosphere.store import DTYPE, StoreWriter, write_store
from smoe_paper.ens10.source import LEAD, DatedFields, EnsembleSource, open_efi, open_truth
from smoe_paper.ens10.store import EnsemblePlan, EnsembleStore

if TYPE_CHECKING:
    from smoe.training.progress import ProgressBar

_MAX_DATES = 24
_FIELDS_PER_PIECE = 16


def make_plan(
    source: EnsembleSource, truth: DatedFields, efi_file: DatedFields | None, train_years: tuple[int, int]
) -> tuple[EnsemblePlan, list[str]]:
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
    starts, (first, last) = source.starts[is_inside], train_years
    years = years_of(starts + LEAD)
    if not ((years >= first) & (years <= last)).any():
        found = describe_years(sorted(set(years.tolist())))
        raise DataError(f"no forecast is for {first} to {last}; there are {found}: choose other --train-years")
    absent = sorted(set(range(first, last + 1)) - set(years.tolist()))
    if absent:
        notices.append(f"of the training years, {describe_years(absent)} are not there")
    has_efi = efi_file is not None and bool(np.isin(efi_file.dates, starts + LEAD).any())
    if not has_efi:
        notices.append(f"no extreme forecast index, and so no EECRPS: no efi_{source.task.name}.nc is for these dates")
    plan = EnsemblePlan(
        source.task.name,
        source.num_members,
        tuple(map(str, starts)),
        source.grid.latitude,
        source.grid.longitude,
        has_efi,
        train_years,
    )
    return plan, notices


def prepare(
    source: EnsembleSource,
    root: Path,
    output: Path,
    train_years: tuple[int, int],
    progress: ProgressBar,
    truth_root: Path | None = None,
) -> EnsembleStore:
    """Writes a store, or resumes an unfinished one after the last forecast that it has read.

    The forecasts are read once; one of them, with the members of one variable, is in memory at a time.
    """
    truth = open_truth(truth_root or root, source.task, source.grid)
    efi_file = open_efi(root, source.task, source.grid)
    plan, notices = make_plan(source, truth, efi_file, train_years)
    with write_store(output, EnsembleStore.format, plan, plan.shapes, progress.notify) as store:
        for notice in notices:
            progress.notify(notice)
        if store.is_finished:
            return EnsembleStore.open(output)
        _write_forecasts(source, truth, plan, store, progress)
        valid = np.array(plan.starts, "datetime64[D]") + LEAD
        check_skill(store.array("statistics")[:, 2 * source.task.target_index], store.array("truth"), valid)
        maps = _normalisation(plan, valid, store.array("statistics"), progress)
        store.write("normalisation", 0, maps)
        if plan.has_efi and efi_file is not None:
            for row, date in enumerate(valid):
                index = efi_file.read(date) if date in efi_file.dates else np.full(plan.shapes["efi"][1:], np.nan)
                store.write("efi", row, index)
        # Part of the checksum.
        store.save(is_finished=True, statistics=np.nanmean(maps, axis=(2, 3), dtype=np.float64).tolist())
    return EnsembleStore.open(output)


def _write_forecasts(
    source: EnsembleSource, truth: DatedFields, plan: EnsemblePlan, store: StoreWriter, progress: ProgressBar
) -> None:
    # The plan excludes forecasts without truth.
    row_of = {start: row for row, start in enumerate(plan.starts)}
    order = [start for start in source.order if str(start) in row_of]
    num_done = store.results.get("num_forecasts", 0)
    progress.begin(len(order), num_done)
    for number, start in enumerate(order[num_done:], num_done + 1):
        statistics, members = source.read(start)
        fields = {"statistics": statistics, "truth": truth.read(start + LEAD), "members": members}
        for name, field in fields.items():
            store.write(name, row_of[str(start)], field)
        store.save(num_forecasts=number)
        progress.advance(f"reading {start}")


def _normalisation(plan: EnsemblePlan, valid: np.ndarray, statistics: np.ndarray, progress: ProgressBar) -> np.ndarray:
    """Mean and standard deviation of the training years at each point, `(2, C, H, W)`."""
    years = years_of(valid)
    first, last = plan.train_years
    rows, maps = np.flatnonzero((years >= first) & (years <= last)), np.empty(plan.shapes["normalisation"], DTYPE)
    progress.begin(maps.shape[1], 0)
    for channel in range(maps.shape[1]):
        moments = FieldMoments((1, *maps.shape[2:]))
        for place in range(0, len(rows), _FIELDS_PER_PIECE):
            moments.add(statistics[rows[place : place + _FIELDS_PER_PIECE], channel, None])
        # A point without values, such as sea surface temperature over land, has the mean and the deviation 0.
        maps[:, channel] = np.nan_to_num([part[0] for part in moments.by_pixel()])
        progress.advance(f"normalisation {channel}")
    return maps


def check_skill(mean: np.ndarray, truth: np.ndarray, dates: np.ndarray) -> None:
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
