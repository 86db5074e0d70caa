"""`smoe data prepare ens10`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from smoe.command_line import parse


@dataclass(frozen=True, kw_only=True)
class PrepareEns10:
    """Writes the store for ENS-10 recipes. If interrupted, run the same command again to resume.

    The extreme forecast index is read from efi_<task>.nc, if it is there. For example:
    smoe data prepare ens10 --root ~/ens10 --output stores/z500 --task z500
    """

    # Folder with ensemble/output.pl.<date>.grib, or with the files as downloaded (output.pl.2018<month><day>).
    root: Path
    output: Path  # Folder of the store.
    task: Literal["z500", "t850", "t2m"]  # Variable to correct, 48 hours ahead.
    members: Literal[5, 10] = 10  # Number of members in the mean and spread: the first 5, or all 10.
    # First and last year of training, by the date for which a forecast is valid.
    train_years: tuple[int, int] = (1998, 2015)
    truth: Path | None = None  # Folder with ERA5_z500.nc and the other truths; None uses the root.


def run_prepare(args: list[str]) -> int:
    options = parse(PrepareEns10, args, prog="smoe data prepare ens10")

    from smoe.training.progress import ProgressBar
    from smoe_paper.atmosphere.store import run_preparation
    from smoe_paper.ens10.prepare import prepare
    from smoe_paper.ens10.source import TASKS, open_ens10
    from smoe_paper.ens10.store import EnsembleStore

    def work(progress: ProgressBar) -> EnsembleStore:
        source = open_ens10(options.root, TASKS[options.task], options.members)
        return prepare(source, options.root, options.output, options.train_years, progress, options.truth)

    return run_preparation(work)
