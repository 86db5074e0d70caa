"""`smoe data check` for a folder of MNIST, Fashion-MNIST or CIFAR-10."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from smoe.command_line import parse


@dataclass(frozen=True)
class Check:
    """Describes image files and checks whether the recipes can use them.

    The exit code is 0 if they can be used and 1 otherwise, with the reasons.

    Attributes:
        path: Folder of the files, or a folder of several such folders.
    """

    path: tyro.conf.Positional[Path]


def recognises(path: Path) -> bool:
    """Returns whether the folder holds files of a known set."""
    from smoe_paper.images.data.describe import has_images

    return has_images(path)


def run(args: list[str]) -> int:
    """Checks a folder, prints the result, and returns 0 for usable data and 1 otherwise."""
    return _check_images(parse(Check, args, prog="smoe data check").path)


def _check_images(path: Path) -> int:
    from smoe_paper.images.data.catalogue import IMAGE_SETS
    from smoe_paper.images.data.describe import describe_images

    found = describe_images(path)
    if not found:
        known = ", ".join(image_set.title for image_set in IMAGE_SETS.values())
        sys.stdout.write(f"{path}: no files of {known}\n")
        return 1
    for description in found:
        for line in (*description.facts, *(f"problem: {text}" for text in description.problems)):
            sys.stdout.write(f"{description.folder}: {line}\n")
        verdict = "cannot be used"
        if description.is_published:
            verdict = f"the published files, can be used: smoe train {description.name}/smoe --data.root {path}"
        elif description.is_readable:
            verdict = f"can be used as {description.name} with --data.verify False only"
        sys.stdout.write(f"{description.folder}: {IMAGE_SETS[description.name].title}, {verdict}\n")
    return 0 if any(description.is_published for description in found) else 1
