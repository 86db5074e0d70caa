"""Makes ensemble stores: checks the options against the data, and writes forecast by forecast."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smoe.errors import DataError
from smoe_paper.atmosphere.store import (
    DTYPE,
    Rows,
    check_disk,
    create_array,
    describe_years,
    only_writer,
    read_metadata,
    write_metadata,
    written_rows,
)
from smoe_paper.ens10.efi import climate_windows, compute_part, parts_of
from smoe_paper.ens10.files import LEAD, DatedFields
from smoe_paper.ens10.sources import EnsembleSource, open_efi, open_truth
from smoe_paper.ens10.store import (
    EFI,
    FORMAT,
    MEMBERS,
    NORMALISATION,
    STATISTICS,
    TRUTH,
    EfiOrigin,
    EnsembleStore,
    Plan,
    point_statistics,
    years_of,
)

if TYPE_CHECKING:
    from smoe.training.progress import ProgressBar
    from smoe_paper.ens10.commands import Preparation

_DIMENSIONS = {
    STATISTICS: ("date", "channel", "lat", "lon"),
    TRUTH: ("date", "lat", "lon"),
    MEMBERS: ("date", "member", "lat", "lon"),
    EFI: ("date", "lat", "lon"),
    NORMALISATION: ("statistic", "channel", "lat", "lon"),
}
_MAX_DATES = 24


def make_plan(
    source: EnsembleSource, truth: DatedFields, efi_file: DatedFields | None, wanted: Preparation
) -> tuple[Plan, list[str]]:
    """Checks the options against the available data.

    Returns:
        The plan, and messages about it.
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


def prepare(
    source: EnsembleSource,
    root: Path,
    output: Path,
    wanted: Preparation,
    reporter: ProgressBar,
    truth_root: Path | None = None,
) -> EnsembleStore:
    """Writes a store, or resumes an unfinished one after the last forecast that it has read.

    The forecasts are read once. One of them, with the members of one variable, is in memory at a time; preprocessed
    files are read four dates at a time.
    """
    truth = open_truth(truth_root or root, source.task, source.grid)
    efi_file = open_efi(root, source.task, source.grid)
    plan, notices = make_plan(source, truth, efi_file, wanted)
    with only_writer(output, _DIMENSIONS):
        for notice in (*source.notices, *truth.notices, *notices):
            reporter.notify(notice)
        if _is_finished(output, plan):
            reporter.notify(f"{output} holds these forecasts already: nothing to do")
            return EnsembleStore.open(output)
        room = check_disk(output, plan.num_bytes, "or prepare without --efi, or from statistics alone")
        reporter.notify(f"{len(plan.starts):,} forecasts, {plan.task}, {plan.num_members} members; {room}")
        write_metadata(output, FORMAT, plan=plan, finished=None)
        _write_forecasts(source, truth, plan, output, reporter)
        valid = np.array(plan.starts, "datetime64[D]") + LEAD
        check_skill(Rows([output / STATISTICS], 2 * source.task.target_index), Rows([output / TRUTH]), valid)
        _write_normalisation(plan, valid, output, reporter)
        if plan.efi == "file":
            assert efi_file is not None
            known = {
                row: efi_file.read(np.array([date]))[0] for row, date in enumerate(valid) if date in efi_file.dates
            }
            _write_efi(plan, known, output)
        elif plan.efi == "computed":
            _write_efi(plan, _compute_efi(plan, output, reporter), output)
        finished = {"kind": source.kind, "notices": [*source.notices, *truth.notices, *notices]}
        write_metadata(output, FORMAT, plan=plan, finished=finished)
    return EnsembleStore.open(output)


def _is_finished(output: Path, plan: Plan) -> bool:
    content = read_metadata(output, FORMAT)
    if not content:
        return False
    old, new = content["plan"], {name: list(x) if isinstance(x, tuple) else x for name, x in asdict(plan).items()}
    changed = [name for name in new if old.get(name) != new[name]]
    is_finished = content["finished"] is not None
    if changed:
        what = "another store" if is_finished else "the beginning of another preparation"
        remedy = "choose another folder for this one" if is_finished else f"run that one to its end, or delete {output}"
        raise DataError(f"{output} holds {what}, which differs in {', '.join(changed)}: {remedy}")
    return is_finished


def _open_array(output: Path, plan: Plan, name: str, *, anew: bool = False) -> Any:
    import zarr

    if anew:
        shutil.rmtree(output / name, ignore_errors=True)
    if not (output / name / "zarr.json").is_file():
        create_array(output / name, plan.shapes[name], _DIMENSIONS[name])
    return zarr.open_array(output / name, mode="r+").with_config({"write_empty_chunks": True})


def _write_forecasts(
    source: EnsembleSource, truth: DatedFields, plan: Plan, output: Path, reporter: ProgressBar
) -> None:
    names = [STATISTICS, TRUTH, *([MEMBERS] if plan.has_members else [])]
    arrays = {name: _open_array(output, plan, name) for name in names}
    written = set.intersection(*(written_rows(output / name) for name in names))
    if written:
        reporter.notify(f"resuming: {len(written)} of {len(plan.starts)} forecasts are written")
    reporter.begin(len(plan.starts), len(written))
    # The plan excludes forecasts without truth.
    row_of = {start: row for row, start in enumerate(plan.starts) if row not in written}
    for block in source.blocks():
        if not any(str(start) in row_of for start in block.starts):
            continue
        for forecast in source.read(block):
            row = row_of.get(str(forecast.start))
            if row is None:
                continue
            fields = {STATISTICS: forecast.statistics, TRUTH: truth.read(np.array([forecast.start + LEAD]))[0]}
            if forecast.members is not None:
                fields[MEMBERS] = forecast.members
            for name, values in fields.items():
                arrays[name][row] = values
            reporter.advance(f"reading {block.name}")


def _write_normalisation(plan: Plan, valid: np.ndarray, output: Path, reporter: ProgressBar) -> None:
    years = years_of(valid)
    first, last = plan.train_years
    is_used = (years >= first) & (years <= last) if plan.normalisation == "training" else np.ones(len(years), bool)
    maps = np.empty(plan.shapes[NORMALISATION], DTYPE)
    reporter.begin(maps.shape[1], 0)
    for channel in range(maps.shape[1]):
        fields = Rows([output / STATISTICS], channel)
        maps[:, channel] = point_statistics(fields.__getitem__, np.flatnonzero(is_used))
        reporter.advance(f"normalisation {channel}")
    _open_array(output, plan, NORMALISATION, anew=True)[:] = maps


def _compute_efi(plan: Plan, output: Path, reporter: ProgressBar) -> dict[int, np.ndarray]:
    starts = np.array(plan.starts, "datetime64[D]")
    # All ten members are used, also if the statistics have five: the release weighs both tasks by one index.
    members = Rows([output / MEMBERS])
    found: dict[int, np.ndarray] = {}
    for year in range(plan.efi_years[0], plan.efi_years[1] + 1):
        windows = climate_windows(starts, year)
        parts = parts_of(windows, members.shape) if windows else []
        found.update({row: np.empty(members.shape[2:], DTYPE) for row in windows})
        reporter.begin(len(parts), 0)
        for rows in parts:
            for row, index in compute_part(windows, rows, members).items():
                found[row][rows] = index
            reporter.advance(f"efi {year} rows {rows.start}-{rows.stop - 1}")
    return found


def _write_efi(plan: Plan, known: dict[int, np.ndarray], output: Path) -> None:
    array = _open_array(output, plan, EFI, anew=True)
    unknown = np.full(plan.shapes[EFI][1:], np.nan, DTYPE)
    for row in range(len(plan.starts)):
        array[row] = known.get(row, unknown)


def check_skill(mean: np.ndarray | Rows, truth: np.ndarray | Rows, dates: np.ndarray) -> None:
    """Refuses forecasts that are mostly nearer to the truth of the date before or after.

    This finds shuffled or shifted times in files whose dates look right.
    """
    if len(dates) < 3:
        return
    rows = np.unique(np.linspace(1, len(dates) - 2, min(_MAX_DATES, len(dates) - 2)).round().astype(int))
    nearest = []
    for row in rows:
        distances = [float(np.abs(mean[row] - truth[row + shift]).mean()) for shift in (-1, 0, 1)]
        nearest.append(int(np.argmin(distances)) - 1)
    num_wrong = sum(shift != 0 for shift in nearest)
    if 2 * num_wrong > len(rows):
        place = next(place for place, shift in enumerate(nearest) if shift)
        other = dates[rows[place] + nearest[place]]
        raise DataError(
            f"{num_wrong} of {len(rows)} forecasts are nearer to the truth of a neighbouring date than to their own, "
            f"the first that for {dates[rows[place]]}, nearer to {other}: times of forecasts or truth are shuffled or "
            "shifted; make both files again"
        )
