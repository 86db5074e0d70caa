"""`smoe data check` and `smoe data prepare` of ENS-10."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from smoe.command_line import parse
from smoe.errors import DataError
from smoe.training import stopped_code

if TYPE_CHECKING:
    from smoe_paper.ens10.variables import EnsembleTask

_MAX_COMPARED = 12


@dataclass(frozen=True)
class Check:
    """Describes a folder of ENS-10 and checks whether the recipes can use it.

    The exit code is 0 if it can be used and 1 otherwise, with the reasons.

    Attributes:
        path: Folder of ENS-10, preprocessed or as downloaded, or a store of `smoe data prepare ens10`.
        quick: Read only headers. This takes seconds, but does not find damage inside files.
    """

    path: tyro.conf.Positional[Path]
    quick: bool = False


def recognises(path: Path) -> bool:
    from smoe_paper.ens10.source import is_ens10

    return (path / "statistics" / "zarr.json").exists() or is_ens10(path)


def run_check(args: list[str]) -> int:
    options = parse(Check, args, prog="smoe data check")
    path, write = options.path, sys.stdout.write
    if (path / "statistics" / "zarr.json").exists():
        from smoe_paper.ens10.store import EnsembleStore

        store = EnsembleStore.open(path)
        write(store.describe())
        if not options.quick:
            store.verify()
            write("every byte is as it was written\n")
        return 0

    from smoe_paper.ens10.variables import TASKS

    usable = []
    for task in TASKS.values():
        try:
            for fact in _describe_task(path, task, options.quick):
                write(f"{task.name}: {fact}\n")
            usable.append(task.name)
        except DataError as error:
            write(f"{task.name}: problem: {error}\n")
    verdict = f"can be used for {', '.join(usable)}" if usable else "cannot be used"
    write(f"{path}: ENS-10, {verdict}{', as far as the headers tell' if options.quick else ''}\n")
    return 0 if usable else 1


def _describe_task(path: Path, task: EnsembleTask, quick: bool) -> list[str]:
    """Reads and checks every field of a task, or its headers."""
    import numpy as np

    from smoe.training.progress import ProgressBar
    from smoe_paper.atmosphere.fields import describe_years, years_of
    from smoe_paper.ens10.prepare import check_skill, make_plan
    from smoe_paper.ens10.source import LEAD, open_efi, open_ens10, open_truth

    source = open_ens10(path, task)
    years = sorted(set(years_of(source.starts + LEAD).tolist()))
    truth, efi_file = open_truth(path, task, source.grid), open_efi(path, task, source.grid)
    plan, notices = make_plan(
        source, truth, efi_file, Preparation(train_years=(years[0], max(years[0], years[-1] - 2)))
    )
    starts = np.array(plan.starts, "datetime64[D]")
    if not quick:
        means, truths = {}, {}
        with ProgressBar() as bar:
            bar.begin(len(source.starts), 0)
            for start in source.order:
                statistics, _ = source.read(start)
                if start in starts:
                    # Some adjacent dates are kept to compare them with the truth.
                    field = truth.read(start + LEAD)
                    if start in starts[-_MAX_COMPARED:]:
                        means[start], truths[start] = statistics[2 * task.target_index].copy(), field
                bar.advance(f"{task.name} {start}")
        dates = sorted(means)
        mean, actual = (np.stack([of[date] for date in dates]) for of in (means, truths))
        check_skill(mean, actual, np.array(dates) + LEAD)
    rows, columns = source.grid.shape
    members = "10 members" if plan.has_members else "mean and spread of 10 members, no members: 5 are not possible"
    return [
        f"{len(source.starts)} forecasts from {source.starts[0]} to {source.starts[-1]} for {describe_years(years)}",
        f"{source.kind}, {rows} x {columns}, {len(task.variables)} variables, {members}",
        *notices,
    ]


@dataclass(frozen=True)
class Preparation:
    """Options of the preparation of a store.

    Attributes:
        train_years: First and last year of training, by the date for which a forecast is valid.
        normalisation: `training` takes statistics at each grid point over the training years; `released` over all
            dates, including the test years, as the release of ENS-10 does.
    """

    train_years: tuple[int, int] = (1998, 2015)
    normalisation: Literal["training", "released"] = "training"


@dataclass(frozen=True, kw_only=True)
class PrepareEns10(Preparation):
    """Writes the store for ENS-10 recipes. If interrupted, run the same command again to resume.

    The extreme forecast index is read from efi_<task>.nc, or computed from the members. For example:
    smoe data prepare ens10 --root ~/ens10 --output stores/z500 --task z500

    Attributes:
        root: Folder with the preprocessed files (ENS10_pl_mean.nc, ...), with ensemble/output.pl.<date>.grib, or with
            the files as downloaded (output.pl.2018<month><day>).
        output: Folder of the store.
        task: Variable to correct, 48 hours ahead.
        members: Number of members in the mean and spread: the first 5, or all 10. 5 requires the members themselves.
        truth: Folder with ERA5_z500.nc and the other truths; None uses the root.
    """

    root: Path
    output: Path
    task: Literal["z500", "t850", "t2m"]
    members: Literal[5, 10] = 10
    truth: Path | None = None


def run_prepare(args: list[str]) -> int:
    options = parse(PrepareEns10, args, prog="smoe data prepare ens10")

    from smoe.training.progress import ProgressBar
    from smoe_paper.ens10.prepare import prepare
    from smoe_paper.ens10.source import open_ens10
    from smoe_paper.ens10.variables import TASKS

    try:
        with ProgressBar(speed_seconds=600) as progress:
            source = open_ens10(options.root, TASKS[options.task], options.members)
            store = prepare(source, options.root, options.output, options, progress, options.truth)
    except KeyboardInterrupt as stop:
        sys.stderr.write("stopped; run the same command again to resume\n")
        return stopped_code(stop)
    sys.stdout.write(store.describe())
    return 0
