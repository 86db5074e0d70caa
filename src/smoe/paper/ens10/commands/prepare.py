"""`smoe data prepare ens10`: writes the store that training on ENS-10 reads."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from smoe.command_line import parse

if TYPE_CHECKING:
    from smoe.paper.ens10.data.store import EnsembleStore


@dataclass(frozen=True)
class PrepareEns10:
    """Writes the store that ENS-10 recipes train on; stopped at any moment, the same command goes on.

    For example: smoe data prepare ens10 --root ~/ens10 --output stores/z500 --task z500

    Attributes:
        root: folder with ENS10_pl_mean.nc and its kin, with ensemble/output.pl.<date>.grib, or with the files as
            downloaded (output.pl.2018<month><day>).
        output: folder of the store.
        task: variable that is corrected, 48 hours ahead.
        members: how many members mean and spread are of: the first 5, or all 10. 5 needs the members themselves.
        train_years: first and last year of training, by the time that a forecast is for.
        normalisation: statistics at each grid point over the training years; released: over all dates, which includes
            the test years, as in the release of ENS-10.
        truth: folder with ERA5_z500.nc and its kin; None: the root.
        efi: extreme forecast index: auto: of efi_<task>.nc if there, else computed from the members if there.
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
    """Parses, prepares, and says what the store holds."""
    options = parse(PrepareEns10, args, prog="smoe data prepare ens10")

    from smoe.experiments.prepare_progress import PrepareProgress
    from smoe.paper.ens10.data.open_ens10 import open_ens10
    from smoe.paper.ens10.data.prepare import prepare
    from smoe.paper.ens10.data.prepare_plan import Preparation

    wanted = Preparation(options.train_years, options.normalisation, options.efi)
    try:
        with (
            open_ens10(options.root, options.task, options.members) as source,
            PrepareProgress() as progress,
        ):
            store = prepare(source, options.root, options.output, wanted, progress, options.truth)
    except KeyboardInterrupt:
        sys.stderr.write("stopped; run the same command again to go on\n")
        return 130
    sys.stdout.write(describe_store(store))
    return 0


def describe_store(store: EnsembleStore) -> str:
    """The store in a few lines."""
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
