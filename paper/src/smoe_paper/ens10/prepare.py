"""Makes ensemble stores: checks the options against the data, writes forecast by forecast, computes the EFI."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smoe.errors import DataError
from smoe_paper.atmosphere.fields import describe_years, years_of
from smoe_paper.atmosphere.store import DTYPE, Moments, StoreWriter, write_store
from smoe_paper.ens10.source import LEAD, DatedFields, EnsembleSource, open_efi, open_truth
from smoe_paper.ens10.store import EnsembleStore, Plan

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
        if plan.efi is not None:
            members = store.array("members")
            known = _compute_efi(plan, members, progress) if plan.efi == "computed" else _read_efi(efi_file, valid)
            for row in range(len(plan.starts)):
                store.write("efi", row, known.get(row, np.full(plan.shapes["efi"][1:], np.nan, DTYPE)))
        # Part of the checksum.
        store.save(is_finished=True, statistics=np.nanmean(maps, axis=(2, 3), dtype=np.float64).tolist())
    return EnsembleStore.open(output)


def _write_forecasts(
    source: EnsembleSource, truth: DatedFields, plan: Plan, store: StoreWriter, progress: ProgressBar
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


def _normalisation(plan: Plan, valid: np.ndarray, statistics: np.ndarray, progress: ProgressBar) -> np.ndarray:
    """Mean and standard deviation of the training years at each point, `(2, C, H, W)`."""
    years = years_of(valid)
    first, last = plan.train_years
    rows, maps = np.flatnonzero((years >= first) & (years <= last)), np.empty(plan.shapes["normalisation"], DTYPE)
    progress.begin(maps.shape[1], 0)
    for channel in range(maps.shape[1]):
        moments = Moments()
        for place in range(0, len(rows), _FIELDS_PER_PIECE):
            moments.add(statistics[rows[place : place + _FIELDS_PER_PIECE], channel].astype(np.float64))
        maps[0, channel], maps[1, channel] = moments.mean, moments.std
        progress.advance(f"normalisation {channel}")
    return maps


def _read_efi(file: DatedFields | None, valid: np.ndarray) -> dict[int, np.ndarray]:
    assert file is not None
    return {row: file.read(date) for row, date in enumerate(valid) if date in file.dates}


def _compute_efi(plan: Plan, members: np.ndarray, progress: ProgressBar) -> dict[int, np.ndarray]:
    """The index of all ten members, also if the statistics have five: the release weighs both tasks by one index."""
    starts = np.array(plan.starts, "datetime64[D]")
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


NUM_QUANTILES = 21
WINDOW = 9
"""Number of forecast dates in a year around a date that belong to its climate."""
MIN_WINDOW = 5
"""Minimal number of these dates; with fewer, near the ends of a year, the index is not defined."""
CLIMATE_YEARS = 18
"""The climate includes this many years before the year of a forecast, and that year."""

_P = np.linspace(0.0, 1.0, NUM_QUANTILES)
_WEIGHTS = 2.0 / np.pi * (_P[1] - _P[0]) / np.sqrt(_P[1:-1] * (1.0 - _P[1:-1]))


def quantiles(sorted_values: np.ndarray) -> np.ndarray:
    """Returns the 21 quantiles of ascending values `(..., N)`, interpolated linearly, float32, `(..., 21)`."""
    place = _P * (sorted_values.shape[-1] - 1)
    below = np.floor(place).astype(np.int64)
    above = np.minimum(below + 1, sorted_values.shape[-1] - 1)
    low = sorted_values[..., below].astype(np.float64)
    return (low + (place - below) * (sorted_values[..., above] - low)).astype(np.float32)


def extreme_forecast_index(climate: np.ndarray, ensemble: np.ndarray) -> np.ndarray:
    """Returns the index at each point, float32, `(P,)`."""
    climate.sort(axis=-1)
    of_climate = quantiles(climate)[:, 1:-1]
    of_ensemble = quantiles(np.sort(ensemble, axis=-1))[:, :-1]
    # searchsorted of each climate quantile among the ensemble's: the number of quantiles strictly below it.
    num_below = np.zeros(of_climate.shape, np.int64)
    for index in range(NUM_QUANTILES - 1):
        num_below += of_ensemble[:, index : index + 1] < of_climate
    return ((_P[1:-1] - _P[num_below]) @ _WEIGHTS).astype(np.float32)


# The climate of 19 years of 105 forecasts of 10 members at 720 longitudes takes 57 MB for each row of the grid.
_BYTES_PER_PART = 200_000_000


def climate_windows(starts: np.ndarray, year: int) -> dict[int, np.ndarray]:
    """Returns, for each forecast of a year, the indices of the forecasts that make up its climate.

    The climate covers 19 years up to the forecast's own, and the nine start days around the forecast's; the days are
    those of the calendar on which a forecast starts in any of these years, as in ENS-10. Windows are cut at the ends
    of the calendar year. Forecasts with fewer than five days in their window, and those that are valid in the next
    year, are left out.
    """
    years = years_of(starts)
    in_climate = (years >= year - CLIMATE_YEARS) & (years <= year)
    day_of = np.array([str(start)[5:] for start in starts])
    days = np.unique(day_of[in_climate])
    place = np.searchsorted(days, day_of)
    windows = {}
    for index in np.flatnonzero((years == year) & (years_of(starts + LEAD) == year)):
        near = in_climate & (np.abs(place - place[index]) <= WINDOW // 2)
        if len(np.unique(place[near])) >= MIN_WINDOW:
            windows[int(index)] = np.flatnonzero(near)
    return windows


def parts_of(windows: dict[int, np.ndarray], shape: tuple[int, ...], num_bytes: int = _BYTES_PER_PART) -> list[slice]:
    """Returns the rows of the grid in parts whose climate fits in memory, for members of shape `(T, 10, H, W)`."""
    _, num_members, height, width = shape
    bytes_per_row = len(_used(windows)) * num_members * width * np.dtype(np.float32).itemsize
    num_rows = max(1, num_bytes // bytes_per_row)
    return [slice(first, min(first + num_rows, height)) for first in range(0, height, num_rows)]


def compute_part(windows: dict[int, np.ndarray], rows: slice, members: np.ndarray) -> dict[int, np.ndarray]:
    """Returns the index of each forecast of a year in some rows of the grid, float32, `(rows, W)`."""
    used = _used(windows)
    # Points first: the values of a point are adjacent and are sorted in cache.
    values = np.stack([members[index][:, rows].reshape(members.shape[1], -1).T for index in used], axis=1)
    found = {}
    for index, window in windows.items():
        climate = values[:, np.searchsorted(used, window)].reshape(len(values), -1)
        ensemble = values[:, int(np.searchsorted(used, index))]
        found[index] = extreme_forecast_index(climate, ensemble).reshape(rows.stop - rows.start, -1)
    return found


def _used(windows: dict[int, np.ndarray]) -> np.ndarray:
    return np.unique(np.concatenate(list(windows.values())))
