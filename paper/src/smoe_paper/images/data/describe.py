"""Describes the image sets in a folder and whether they can be used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from smoe.errors import DataError
from smoe_paper.images.data.catalogue import IMAGE_SETS, Part
from smoe_paper.images.data.image_files import LabelledImages, find_files, read_images

_PARTS: tuple[Part, ...] = ("train", "test")


@dataclass(frozen=True)
class ImageSetDescription:
    """Contents of the files of a set.

    Attributes:
        name: Name of the set in recipes.
        folder: Folder of the files.
        facts: One line for each part that can be read.
        problems: Reasons against using the files as the published ones.
        is_readable: Whether the files are of the right format, published or not.
    """

    name: str
    folder: Path
    facts: tuple[str, ...]
    problems: tuple[str, ...]
    is_readable: bool

    @property
    def is_published(self) -> bool:
        """Returns whether these are the published files."""
        return not self.problems


def has_images(root: Path) -> bool:
    """Returns whether a folder holds files with the names of a known set."""
    return bool(_names_in(root))


def describe_images(root: Path) -> list[ImageSetDescription]:
    """Describes the sets below a root.

    MNIST and Fashion-MNIST have the same file names and are distinguished by their contents. Files of neither set are
    described once.
    """
    found = [_describe(name, root) for name in _names_in(root)]
    chosen: dict[Path, ImageSetDescription] = {}
    for description in found:
        known = chosen.get(description.folder)
        if known is None or (description.is_published and not known.is_published):
            chosen[description.folder] = description
    return list(chosen.values())


def _names_in(root: Path) -> list[str]:
    return [name for name in IMAGE_SETS if any(_find(name, root, part) is not None for part in _PARTS)]


def _find(name: str, root: Path, part: Part) -> list[Path] | None:
    try:
        return find_files(name, root, part)
    except DataError:
        return None


def _describe(name: str, root: Path) -> ImageSetDescription:
    files = next(found for part in _PARTS if (found := _find(name, root, part)) is not None)
    facts: list[str] = []
    problems: list[str] = []
    is_readable = True
    for part in _PARTS:
        try:
            facts.append(_summarise(name, part, read_images(name, root, part)))
        except DataError as error:
            problems.append(f"{part}: {error}")
            try:
                images = read_images(name, root, part, verify=False, notify=_quietly)
                facts.append(_summarise(name, part, images))
            except DataError:
                is_readable = False
    return ImageSetDescription(name, files[0].parent, tuple(facts), tuple(problems), is_readable)


def _summarise(name: str, part: str, images: LabelledImages) -> str:
    image_set = IMAGE_SETS[name]
    channels, rows, columns = images.images.shape[1:]
    counts = np.bincount(images.labels, minlength=len(image_set.classes))
    size = f"{rows} x {columns}" + (f" in {channels} colours" if channels > 1 else "")
    few, many = counts.min(), counts.max()
    spread = f"{few:,} of each class" if few == many else f"{few:,} to {many:,} of each of {len(counts)} classes"
    held_back = int(image_set.validation_share * len(images.labels)) if part == "train" else 0
    validation = f"; the first {held_back:,} are the validation split" if held_back else ""
    return f"{part}: {len(images.labels):,} images of {size}, {spread}{validation}"


def _quietly(_: str) -> None:
    pass
