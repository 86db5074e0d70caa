"""`smoe data check` for a folder of ENS-10."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from smoe.command_line import parse

if TYPE_CHECKING:
    from rich.console import Console

    from smoe_paper.ens10.data.describe import TaskDescription


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
    """Returns whether the folder has the layout of ENS-10."""
    from smoe_paper.ens10.data.open_ens10 import is_ens10

    return is_ens10(path)


def run(args: list[str]) -> int:
    """Checks a folder, prints the result, and returns 0 for usable data and 1 otherwise."""
    options = parse(Check, args, prog="smoe data check")

    from rich.console import Console

    from smoe.training.progress import ProgressBar
    from smoe_paper.ens10.data.describe import describe_ens10

    with ProgressBar() as bar:
        tasks = describe_ens10(options.path, quick=options.quick, progress=bar.show)
    return print_tasks(options.path, tasks, options.quick, Console(highlight=False, soft_wrap=True, markup=False))


def print_tasks(path: Path, tasks: list[TaskDescription], quick: bool, console: Console) -> int:
    """Prints the tasks of ENS-10 and the verdict; returns 0 if one of them can be used."""
    for task in tasks:
        for fact in task.facts:
            console.print(f"{task.name}: {fact}")
        if task.problem is not None:
            console.print(f"{task.name}: problem: {task.problem}")
    usable = [task.name for task in tasks if task.problem is None]
    verdict = f"can be used for {', '.join(usable)}" if usable else "cannot be used"
    console.print(f"{path}: ENS-10, {verdict}" + (", as far as the headers tell" if quick else ""))
    return 0 if usable else 1
