"""Recognises a folder of ENS-10 and opens it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from smoe.errors import DataError
from smoe.gridded import OpenFiles, open_netcdf
from smoe_paper.atmosphere.grid import Grid
from smoe_paper.atmosphere.variables import Variable
from smoe_paper.ens10.data.fields import DatedFields, GlobalGrid
from smoe_paper.ens10.data.members import MemberSource, find_member_files
from smoe_paper.ens10.data.preprocessed import PreprocessedSource, statistics_file
from smoe_paper.ens10.data.source import EnsembleSource
from smoe_paper.ens10.data.variables import NUM_MEMBERS, TASKS, EnsembleTask, TaskName

_EFI = Variable("efi", "efi", "1", (-1.2, 1.2), varies=False, unit_names=("", "dimensionless"))


def is_ens10(path: Path) -> bool:
    """Returns whether a folder holds files of ENS-10's layout."""
    if not path.is_dir():
        return False
    return any(path.glob("ENS10_*.nc")) or any(find_member_files(path, task) for task in TASKS.values())


def open_ens10(root: Path, task_name: TaskName, num_members: Literal[5, 10]) -> EnsembleSource:
    """Opens the forecasts of a task.

    The preprocessed statistics have ten members; statistics of five need the members themselves.

    Args:
        root: Folder with the preprocessed files, with `ensemble/`, or with the files as downloaded.
        task_name: `z500`, `t850` or `t2m`.
        num_members: 5 or 10.

    Raises:
        DataError: If something is missing or inconsistent; the message contains the remedy.
    """
    if task_name not in TASKS:
        raise DataError(f"no task is named {task_name!r}; there are {', '.join(TASKS)}")
    if num_members not in (5, 10):
        raise DataError(f"--members must be 5 or 10, got {num_members}")
    if not root.is_dir():
        raise DataError(f"{root} does not exist; expected a folder of ENS-10")
    task = TASKS[task_name]
    files = find_member_files(root, task)
    paths = [statistics_file(root, task, statistic) for statistic in ("mean", "std")]
    present = [path for path in paths if path.is_file()]
    if len(present) == 1:
        missing = next(path for path in paths if path not in present)
        raise DataError(f"{root} has {present[0].name} but not {missing.name}; download or make both")
    if present and num_members == NUM_MEMBERS:
        # The members' mean is compared with the statistics while reading.
        return PreprocessedSource(root, task, MemberSource(files, task, NUM_MEMBERS) if files else None)
    if files:
        return MemberSource(files, task, num_members)
    if present:
        raise DataError(
            f"{paths[0]} is of ten members, and --members 5 needs the members themselves: put "
            f"ensemble/output.{task.level_type}.<date>.grib beside it, or name the folder of the files as downloaded"
        )
    raise DataError(
        f"{root} holds no forecasts for {task_name}; expected {paths[0].name} and {paths[1].name}, "
        f"ensemble/output.{task.level_type}.<date>.grib, or output.{task.level_type}.2018<month><day>"
    )


def open_truth(root: Path, task: EnsembleTask, grid: Grid, files: OpenFiles | None = None) -> DatedFields:
    """Opens ERA5 at the dates for which the forecasts are valid.

    Raises:
        DataError: If it is missing or on another grid.
    """
    path = root / task.truth_file
    if not path.is_file():
        raise DataError(f"{root} has no {task.truth_file}, the truth of {task.name}: put it there, or name its --truth")
    variable = task.target_variable
    names = (variable.name, variable.grib_name)
    physics = variable.on_level(task.level)
    return DatedFields(files or OpenFiles(open_netcdf), path, names, task.level, physics, GlobalGrid(grid))


def open_efi(root: Path, task: EnsembleTask, grid: Grid) -> DatedFields | None:
    """Opens the extreme forecast index of the release, if it exists; otherwise returns None."""
    path = root / f"efi_{task.name}.nc"
    if not path.is_file():
        return None
    return DatedFields(OpenFiles(open_netcdf), path, ("efi",), None, _EFI, GlobalGrid(grid))
