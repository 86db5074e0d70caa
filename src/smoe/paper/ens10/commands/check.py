"""`smoe data check` of a folder of ENS-10."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from smoe.command_line import parse

if TYPE_CHECKING:
    from rich.console import Console

    from smoe.paper.ens10.data.describe import TaskDescription


@dataclass(frozen=True)
class Check:
    """Describes a folder of ENS-10 and whether the recipes can use it.

    Exit code 0: they can be used; 1: they cannot, with the reasons.

    Attributes:
        path: Folder of ENS-10, preprocessed or as downloaded.
        quick: Read headers only: seconds, but damage inside a file stays unseen.
    """

    path: tyro.conf.Positional[Path]
    quick: bool = False


def recognises(path: Path) -> bool:
    """Whether the folder has the layout of ENS-10."""
    from smoe.paper.ens10.data.open_ens10 import is_ens10

    return is_ens10(path)


def run(args: list[str]) -> int:
    """Parses, checks, prints, and returns 0 for usable data, 1 for others."""
    options = parse(Check, args, prog="smoe data check")

    from smoe.experiments.check_progress import check_progress, make_console
    from smoe.paper.ens10.data.describe import describe_ens10

    with check_progress() as show:
        tasks = describe_ens10(options.path, quick=options.quick, progress=show)
    return print_tasks(options.path, tasks, options.quick, make_console())


def print_tasks(path: Path, tasks: list[TaskDescription], quick: bool, console: Console) -> int:
    """The tasks of ENS-10 one by one and the verdict last; returns 0 if one can be used."""
    for task in tasks:
        for fact in task.facts:
            console.print(f"{task.name}: {fact}")
        if task.problem is not None:
            console.print(f"{task.name}: problem: {task.problem}")
    usable = [task.name for task in tasks if task.problem is None]
    verdict = f"can be used for {', '.join(usable)}" if usable else "cannot be used"
    console.print(f"{path}: ENS-10, {verdict}" + (", as far as the headers tell" if quick else ""))
    return 0 if usable else 1
