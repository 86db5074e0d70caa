"""`smoe data prepare ens10`: writes the store for training on ENS-10."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from smoe._signals import stopped_code
from smoe.command_line import parse

if TYPE_CHECKING:
    from smoe_paper.ens10.data.store import EnsembleStore


@dataclass(frozen=True)
class PrepareEns10:
    """Writes the store for ENS-10 recipes. If interrupted, run the same command again to resume.

    For example: smoe data prepare ens10 --root ~/ens10 --output stores/z500 --task z500

    Attributes:
        root: Folder with the preprocessed files (ENS10_pl_mean.nc, ...), with ensemble/output.pl.<date>.grib, or with
            the files as downloaded (output.pl.2018<month><day>).
        output: Folder of the store.
        task: Variable to correct, 48 hours ahead.
        members: Number of members in the mean and spread: the first 5, or all 10. 5 requires the members themselves.
        train_years: First and last year of training, by the date for which a forecast is valid.
        normalisation: `training` takes statistics at each grid point over the training years; `released` over all
            dates, including the test years, as the release of ENS-10 does.
        truth: Folder with ERA5_z500.nc and the other truths; None uses the root.
        efi: Extreme forecast index. `auto` reads efi_<task>.nc if it exists, or computes the index from the members.
    """

    root: Path
    output: Path
    task: Literal["z500", "t850", "t2m"]
    members: Literal[5, 10] = 10
    train_years: tuple[int, int] = (1998, 2015)
    normalisation: Literal["training", "released"] = "training"
    truth: Path | None = None
    efi: Literal["auto", "file", "computed", "none"] = "auto"


def run(args: list[str]) -> int:
    """Prepares a store and prints its contents."""
    options = parse(PrepareEns10, args, prog="smoe data prepare ens10")

    from smoe.training.progress import ProgressBar
    from smoe_paper.ens10.data.open_ens10 import open_ens10
    from smoe_paper.ens10.data.prepare import prepare
    from smoe_paper.ens10.data.prepare_plan import Preparation

    wanted = Preparation(options.train_years, options.normalisation, options.efi)
    try:
        with (
            open_ens10(options.root, options.task, options.members) as source,
            ProgressBar(speed_seconds=600) as progress,
        ):
            store = prepare(source, options.root, options.output, wanted, progress, options.truth)
    except KeyboardInterrupt as stop:
        sys.stderr.write("stopped; run the same command again to resume\n")
        return stopped_code(stop)
    sys.stdout.write(describe_store(store))
    return 0


def describe_store(store: EnsembleStore) -> str:
    """Describes the store in a few lines."""
    plan = store.metadata.plan
    rows, columns = store.grid.shape
    first, last = store.train_years
    years = f"the training years {first} to {last}" if plan.normalisation == "training" else "all dates, as released"
    efi = {"file": "of the release", "computed": f"computed for {plan.efi_years[0]} to {plan.efi_years[1]}"}
    size = sum(plan.num_bytes(name) for name in plan.shapes) / 1e9
    return (
        f"{store.path}: {store.task}, {len(store.dates):,} forecasts, started {store.dates[0]} to {store.dates[-1]}; "
        f"{len(store.channels)} channels, {rows} x {columns}; {size:.2f} GB\n"
        f"mean and population standard deviation of {store.num_members} members, normalised by statistics of {years}\n"
        f"members: {'kept, all 10' if plan.has_members else 'none'}; extreme forecast index: "
        f"{'none' if plan.efi is None else efi[plan.efi]}\n"
    )
