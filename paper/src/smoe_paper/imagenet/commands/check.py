"""`smoe data check` for class folders of images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from smoe.command_line import parse

if TYPE_CHECKING:
    from rich.console import Console

    from smoe_paper.imagenet.data.describe_folders import FolderDescription


@dataclass(frozen=True)
class Check:
    """Describes class folders and checks whether the ImageNet recipes can use them.

    The exit code is 0 if they can be used and 1 otherwise, with the reasons.

    Attributes:
        path: Folder of `train` and `val`, each with a folder for each class.
        quick: Read only headers. This takes seconds, but does not find damage inside files.
    """

    path: tyro.conf.Positional[Path]
    quick: bool = False


def recognises(path: Path) -> bool:
    """Returns whether the folder holds class folders."""
    from smoe_paper.imagenet.data.describe_folders import is_class_folders

    return is_class_folders(path)


def run(args: list[str]) -> int:
    """Checks a folder, prints the result, and returns 0 for usable data and 1 otherwise."""
    options = parse(Check, args, prog="smoe data check")

    from rich.console import Console

    from smoe.training.progress import ProgressBar
    from smoe_paper.imagenet.data.describe_folders import describe_folders

    with ProgressBar() as bar:
        folders = describe_folders(options.path, quick=options.quick, progress=bar.show)
    return print_folders(options.path, folders, options.quick, Console(highlight=False, soft_wrap=True, markup=False))


def print_folders(path: Path, found: FolderDescription, quick: bool, console: Console) -> int:
    """Prints the contents of the class folders and the verdict; returns 0 if they can be used."""
    for title, lines in (("", found.facts), ("remark: ", found.remarks), ("problem: ", found.problems)):
        for line in lines:
            console.print(f"{title}{line}")
    verdict = f"can be used: smoe train imagenet/smoe --data.root {path}" if found.is_usable else "cannot be used"
    console.print(f"{path}: class folders, {verdict}" + (", as far as the names tell" if quick else ""))
    return 0 if found.is_usable else 1
