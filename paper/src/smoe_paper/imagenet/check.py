"""`smoe data check` of ImageNet: lists both splits and reads every image to its end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tyro

from smoe.command_line import parse
from smoe.errors import DataError
from smoe_paper.imagenet.folders import ClassFolders, find_class_folders, read_image

if TYPE_CHECKING:
    from smoe.training.progress import ProgressBar

PUBLISHED_COUNTS = {"train": 1_281_167, "val": 50_000}
# Further broken images are counted and not shown.
_NUM_SHOWN = 10


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
    """Whether a folder has the layout of ImageNet: `train` with folders in it, and `val`."""
    train = path / "train"
    return train.is_dir() and (path / "val").is_dir() and any(entry.is_dir() for entry in train.iterdir())


def run_check(args: list[str]) -> int:
    from rich.console import Console

    from smoe.training.progress import ProgressBar

    options = parse(Check, args, prog="smoe data check")
    facts: list[str] = []
    problems: list[str] = []
    classes: tuple[str, ...] | None = None
    with ProgressBar() as bar:
        for split in PUBLISHED_COUNTS:
            listing = f"listing the classes of {split}"
            try:
                images = find_class_folders(
                    options.path / split, classes, lambda done, total, text=listing: bar.show(done, total, text)
                )
            except DataError as error:
                problems.append(f"problem: {error}")
                continue
            classes = classes or images.classes
            facts += _summarise(split, images)
            if not options.quick:
                _read_all(split, images, problems, bar)
    console = Console(highlight=False, soft_wrap=True, markup=False)
    for line in (*facts, *problems):
        console.print(line)
    verdict = "cannot be used" if problems else f"can be used: smoe train imagenet/smoe --data.root {options.path}"
    console.print(f"{options.path}: class folders, {verdict}" + (", as far as the names tell" if options.quick else ""))
    return 1 if problems else 0


def _summarise(split: str, images: ClassFolders) -> list[str]:
    counts = np.bincount(images.labels)
    few, many = counts.min(), counts.max()
    spread = f"{few:,} of each" if few == many else f"{few:,} to {many:,} of each"
    published = f" (ImageNet: {PUBLISHED_COUNTS[split]:,})" if len(images.classes) == 1000 else ""
    return [f"{split}: {len(images):,} images{published} of {len(images.classes):,} classes, {spread}"]


def _read_all(split: str, images: ClassFolders, problems: list[str], bar: ProgressBar) -> None:
    broken: list[str] = []
    for index in range(len(images)):
        try:
            read_image(images.path(index))
        except DataError as error:
            broken.append(f"problem: {error}")
        bar.show(index + 1, len(images), f"reading {split}")
    problems += broken[:_NUM_SHOWN]
    if len(broken) > _NUM_SHOWN:
        problems.append(f"problem: {split}: {len(broken) - _NUM_SHOWN:,} further images cannot be read")
