"""`smoe data check` and `smoe data prepare` of ENS-10."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from smoe.command_line import parse
from smoe.training import stopped_code

if TYPE_CHECKING:
    from smoe_paper.ens10.store import EnsembleStore


@dataclass(frozen=True)
class Check:
    """Describes a folder of ENS-10 and checks whether the recipes can use it.

    The exit code is 0 if it can be used and 1 otherwise, with the reasons.

    Attributes:
        path: Folder of ENS-10, preprocessed or as downloaded.
        quick: Read only headers. This takes seconds, but does not find damage inside files.
    """

    path: tyro.conf.Positional[Path]
    quick: bool = False


def recognises(path: Path) -> bool:
    from smoe_paper.ens10.sources import is_ens10

    return is_ens10(path)


def run_check(args: list[str]) -> int:
    options = parse(Check, args, prog="smoe data check")

    from rich.console import Console

    from smoe.training.progress import ProgressBar
    from smoe_paper.ens10.check import check_ens10

    with ProgressBar() as bar:
        console = Console(highlight=False, soft_wrap=True, markup=False)
        return check_ens10(options.path, options.quick, bar.show, console)


@dataclass(frozen=True)
class Preparation:
    """Options of the preparation of a store.

    Attributes:
        train_years: First and last year of training, by the date for which a forecast is valid.
        normalisation: `training` takes statistics at each grid point over the training years; `released` over all
            dates, including the test years, as the release of ENS-10 does.
        efi: Extreme forecast index. `auto` reads efi_<task>.nc if it exists, or computes the index from the members.
    """

    train_years: tuple[int, int] = (1998, 2015)
    normalisation: Literal["training", "released"] = "training"
    efi: Literal["auto", "file", "computed", "none"] = "auto"


@dataclass(frozen=True, kw_only=True)
class PrepareEns10(Preparation):
    """Writes the store for ENS-10 recipes. If interrupted, run the same command again to resume.

    For example: smoe data prepare ens10 --root ~/ens10 --output stores/z500 --task z500

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
    from smoe_paper.ens10.sources import open_ens10

    try:
        with (
            open_ens10(options.root, options.task, options.members) as source,
            ProgressBar(speed_seconds=600) as progress,
        ):
            store = prepare(source, options.root, options.output, options, progress, options.truth)
    except KeyboardInterrupt as stop:
        sys.stderr.write("stopped; run the same command again to resume\n")
        return stopped_code(stop)
    sys.stdout.write(describe_store(store))
    return 0


def describe_store(store: EnsembleStore) -> str:
    plan = store.plan
    rows, columns = store.grid.shape
    first, last = store.train_years
    years = f"the training years {first} to {last}" if plan.normalisation == "training" else "all dates, as released"
    efi = {"file": "of the release", "computed": f"computed for {plan.efi_years[0]} to {plan.efi_years[1]}"}
    return (
        f"{store.path}: {store.task}, {len(store.dates):,} forecasts, started {store.dates[0]} to {store.dates[-1]}; "
        f"{len(store.channels)} channels, {rows} x {columns}; {plan.num_bytes / 1e9:.2f} GB\n"
        f"mean and population standard deviation of {store.num_members} members, normalised by statistics of {years}\n"
        f"members: {'kept, all 10' if plan.has_members else 'none'}; extreme forecast index: "
        f"{'none' if plan.efi is None else efi[plan.efi]}\n"
    )
