"""`smoe data check` of ENS-10: describes a folder, and which of the three tasks can be trained on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console

from smoe.errors import DataError
from smoe_paper.atmosphere.store import describe_years
from smoe_paper.ens10.commands import Preparation
from smoe_paper.ens10.files import LEAD, DatedFields
from smoe_paper.ens10.prepare import check_skill, make_plan
from smoe_paper.ens10.sources import EnsembleSource, open_efi, open_ens10, open_truth
from smoe_paper.ens10.store import years_of
from smoe_paper.ens10.variables import NUM_MEMBERS, TASKS, EnsembleTask

Progress = Callable[[int, int, str], None]

_MAX_COMPARED = 12


def check_ens10(path: Path, quick: bool, progress: Progress, console: Console) -> int:
    """Checks the files of each task separately and prints what they hold; returns 0 if one task can be used."""
    usable = []
    for task in TASKS.values():
        try:
            with open_ens10(path, task.name, NUM_MEMBERS) as source:
                for fact in _facts(path, task, source, quick, progress):
                    console.print(f"{task.name}: {fact}")
            usable.append(task.name)
        except DataError as error:
            console.print(f"{task.name}: problem: {error}")
    verdict = f"can be used for {', '.join(usable)}" if usable else "cannot be used"
    console.print(f"{path}: ENS-10, {verdict}" + (", as far as the headers tell" if quick else ""))
    return 0 if usable else 1


def _facts(path: Path, task: EnsembleTask, source: EnsembleSource, quick: bool, progress: Progress) -> list[str]:
    rows, columns = source.grid.shape
    first, last = (int(year) for year in years_of(source.starts + LEAD)[[0, -1]])
    years = describe_years(sorted(set(years_of(source.starts + LEAD).tolist())))
    members = "10 members" if source.has_members else "mean and spread of 10 members, no members: 5 are not possible"
    truth, efi_file = open_truth(path, task, source.grid), open_efi(path, task, source.grid)
    plan, notices = make_plan(source, truth, efi_file, Preparation(train_years=(first, max(first, last - 2))))
    if not quick:
        starts = source.starts[np.isin(source.starts, np.array(plan.starts, "datetime64[D]"))]
        _read_everything(task, source, truth, starts, progress)
    return [
        f"{len(source.starts)} forecasts from {source.starts[0]} to {source.starts[-1]} for {years}",
        f"{source.kind}, {rows} x {columns}, {len(task.variables)} variables, {members}",
        *source.notices,
        *notices,
    ]


def _read_everything(
    task: EnsembleTask, source: EnsembleSource, truth: DatedFields, starts: np.ndarray, progress: Progress
) -> None:
    """Reads and checks every field; some adjacent dates of the target are kept to compare them with the truth."""
    compared = starts[-_MAX_COMPARED:]
    means: dict[np.datetime64, np.ndarray] = {}
    done = 0
    for block in source.blocks():
        for forecast in source.read(block):
            progress(done, len(source.starts), f"{task.name} {forecast.start}")
            done += 1
            if forecast.start in starts:
                truth.read(np.array([forecast.start + LEAD]))
            if forecast.start in compared:
                means[forecast.start] = forecast.statistics[2 * task.target_index].copy()
    check_skill(np.stack([means[start] for start in compared]), truth.read(compared + LEAD), compared + LEAD)
