"""Describes a folder of ENS-10 and which of the three tasks can be trained on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from smoe.errors import DataError
from smoe_paper.atmosphere.store import describe_years
from smoe_paper.ens10.commands import Preparation
from smoe_paper.ens10.fields import LEAD, DatedFields
from smoe_paper.ens10.prepare import check_skill, make_plan
from smoe_paper.ens10.sources import EnsembleSource, open_efi, open_ens10, open_truth
from smoe_paper.ens10.store import years_of
from smoe_paper.ens10.variables import NUM_MEMBERS, TASKS, EnsembleTask

Progress = Callable[[int, int, str], None]

_MAX_COMPARED = 12


@dataclass
class TaskDescription:
    """Contents of a folder for one task.

    Attributes:
        name: Name of the task.
        facts: Descriptions of the files; empty if there are none.
        problem: Reason against the use; None if the task can be used.
    """

    name: str
    facts: list[str] = field(default_factory=list)
    problem: str | None = None


def describe_ens10(path: Path, *, quick: bool = False, progress: Progress | None = None) -> list[TaskDescription]:
    """Checks the files of each task separately, so that a problem of one does not hide the others."""
    found = []
    for task in TASKS.values():
        description = TaskDescription(task.name)
        found.append(description)
        try:
            with open_ens10(path, task.name, NUM_MEMBERS) as source:
                _look(path, task, source, description, quick, progress)
        except DataError as error:
            description.problem = str(error)
    return found


def _look(
    path: Path,
    task: EnsembleTask,
    source: EnsembleSource,
    description: TaskDescription,
    quick: bool,
    progress: Progress | None,
) -> None:
    rows, columns = source.grid.shape
    years = describe_years(tuple(sorted(set(years_of(source.starts + LEAD).tolist()))))
    members = "10 members" if source.has_members else "mean and spread of 10 members, no members: 5 are not possible"
    description.facts = [
        f"{len(source.starts)} forecasts from {source.starts[0]} to {source.starts[-1]} for {years}",
        f"{source.kind}, {rows} x {columns}, {len(task.variables)} variables, {members}",
        *source.notices,
    ]
    truth = open_truth(path, task, source.grid)
    efi_file = open_efi(path, task, source.grid)
    first, last = (int(year) for year in years_of(source.starts + LEAD)[[0, -1]])
    plan, notices = make_plan(source, truth, efi_file, Preparation(train_years=(first, max(first, last - 2))))
    description.facts += notices
    if not quick:
        starts = source.starts[np.isin(source.starts, np.array(plan.starts, "datetime64[D]"))]
        _read_everything(task, source, truth, starts, progress)


def _read_everything(
    task: EnsembleTask, source: EnsembleSource, truth: DatedFields, starts: np.ndarray, progress: Progress | None
) -> None:
    """Reads and checks every field; some adjacent dates of the target are kept to compare them with the truth."""
    compared = starts[-_MAX_COMPARED:]
    means: dict[np.datetime64, np.ndarray] = {}
    done = 0
    for block in source.blocks():
        for forecast in source.read(block):
            if progress is not None:
                progress(done, len(source.starts), f"{task.name} {forecast.start}")
            done += 1
            if forecast.start in starts:
                truth.read(np.array([forecast.start + LEAD]))
            if forecast.start in compared:
                means[forecast.start] = forecast.statistics[2 * task.target_index].copy()
    check_skill(np.stack([means[start] for start in compared]), truth.read(compared + LEAD), compared + LEAD)
