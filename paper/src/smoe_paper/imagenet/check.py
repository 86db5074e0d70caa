"""`smoe data check` of ImageNet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tyro

from smoe.command_line import parse
from smoe.errors import DataError
from smoe_paper.imagenet.folders import ClassFolders, find_class_folders, read_image

if TYPE_CHECKING:
    from rich.console import Console


SPLITS = ("train", "val")
PUBLISHED_COUNTS = {"train": 1_281_167, "val": 50_000}
# Further entries of one kind are counted and not shown.
_NUM_SHOWN = 10

Progress = Callable[[int, int, str], None]


@dataclass
class FolderDescription:
    """Contents of class folders.

    Attributes:
        facts: One line for each split.
        remarks: Unusual properties that do not prevent the use.
        problems: Reasons against the use.
    """

    facts: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def is_usable(self) -> bool:
        return not self.problems


def is_class_folders(root: Path) -> bool:
    """Whether a folder has the layout of ImageNet: `train` with folders in it, and `val`."""
    train = root / "train"
    return train.is_dir() and (root / "val").is_dir() and any(entry.is_dir() for entry in train.iterdir())


def describe_folders(root: Path, *, quick: bool = False, progress: Progress | None = None) -> FolderDescription:
    """Lists both splits and reads every image to its end."""
    found = FolderDescription()
    classes: tuple[str, ...] | None = None
    for split in SPLITS:
        try:
            images = find_class_folders(root / split, classes, _of_classes(progress, split))
        except DataError as error:
            found.problems.append(str(error))
            continue
        classes = images.classes if classes is None else classes
        found.facts.append(_summarise(split, images))
        if len(images.classes) == 1000 and len(images) != PUBLISHED_COUNTS[split]:
            found.remarks.append(
                f"{split} has {len(images):,} images of 1000 classes; ImageNet has {PUBLISHED_COUNTS[split]:,}"
            )
        if not quick:
            _read_all(split, images, found, progress)
    return found


def _of_classes(progress: Progress | None, split: str) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, total: progress(done, total, f"listing the classes of {split}")


def _summarise(split: str, images: ClassFolders) -> str:
    counts = np.bincount(images.labels)
    few, many = counts.min(), counts.max()
    spread = f"{few:,} of each" if few == many else f"{few:,} to {many:,} of each"
    return f"{split}: {len(images):,} images of {len(images.classes):,} classes, {spread}"


def _read_all(split: str, images: ClassFolders, found: FolderDescription, progress: Progress | None) -> None:
    num_broken, smallest = 0, None
    for index in range(len(images)):
        try:
            side = min(read_image(images.path(index)).size)
            smallest = side if smallest is None else min(side, smallest)
        except DataError as error:
            num_broken += 1
            if num_broken <= _NUM_SHOWN:
                found.problems.append(str(error))
        if progress is not None:
            progress(index + 1, len(images), f"reading {split}")
    if num_broken > _NUM_SHOWN:
        found.problems.append(f"{split}: {num_broken - _NUM_SHOWN:,} further images cannot be read")
    if smallest is not None:
        found.facts.append(f"{split}: the smallest side of an image is {smallest} pixels")


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
    return is_class_folders(path)


def run_check(args: list[str]) -> int:
    options = parse(Check, args, prog="smoe data check")

    from rich.console import Console

    from smoe.training.progress import ProgressBar

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
