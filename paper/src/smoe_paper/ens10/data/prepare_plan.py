"""Plans the preparation of an ensemble store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from smoe.errors import DataError
from smoe.gridded.year_ranges import describe_years
from smoe_paper.ens10.data.dated_fields import DatedFields
from smoe_paper.ens10.data.dates import LEAD, years_of
from smoe_paper.ens10.data.source import EnsembleSource
from smoe_paper.ens10.data.store_format import EfiOrigin, Plan, StatisticsYears

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
