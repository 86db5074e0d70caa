"""Lists images in class folders, the layout of ImageNet: `train/<class>/*.JPEG` and `val/<class>/*.JPEG`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from smoe.errors import DataError

EXTENSIONS = (".jpeg", ".jpg", ".png")
_LAYOUT = "it is to hold a folder for each class with its images in it, as in n01440764/n01440764_10026.JPEG"
# Number of names shown of a long list.
_NUM_NAMED = 3


@dataclass(frozen=True)
class ClassFolders:
    """The images of one split, in the order of their classes and names.

    Attributes:
        folder: Folder of the class folders.
        classes: Names of the class folders, sorted; a label is an index into them.
        names: Names of the files, as bytes: a million Python strings would be copied into every reading process.
        labels: Class of each file.
    """

    folder: Path
    classes: tuple[str, ...]
    names: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> Path:
        """Returns the file of an image."""
        return self.folder / self.classes[self.labels[index]] / os.fsdecode(self.names[index])

    def part(self, indices: np.ndarray) -> ClassFolders:
        """Returns a subset of the images with the same classes."""
        return ClassFolders(self.folder, self.classes, self.names[indices], self.labels[indices])


def find_classes(folder: Path) -> tuple[str, ...]:
    """Returns the class folders of a split, sorted.

    Raises:
        DataError: If there are none, or there are images beside them.
    """
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}: {_LAYOUT}")
    entries = _list(folder)
    # A link to a folder counts as a folder: data sets are often distributed over several disks.
    classes = sorted(entry.name for entry in entries if entry.is_dir())
    stray = sorted(entry.name for entry in entries if not entry.is_dir())
    if not classes and any(_is_image(name) for name in stray):
        raise DataError(
            f"{folder} holds {len(stray)} images and no class folders. ImageNet's validation images come so: move each "
            "into the folder of its class, which the development kit's ILSVRC2012_validation_ground_truth.txt or "
            f"LOC_val_solution.csv names by the number in its name; {_LAYOUT}"
        )
    if not classes:
        raise DataError(f"{folder} has no class folders: {_LAYOUT}")
    lost = [name for name in stray if _is_image(name)]
    if lost:
        raise DataError(f"{folder} holds {_some(lost, 'image')} beside its class folders; move or remove them")
    return tuple(classes)


def find_class_folders(
    folder: Path, classes: Sequence[str] | None = None, progress: Callable[[int, int], None] | None = None
) -> ClassFolders:
    """Lists the images of a split without opening them. Hidden files are ignored.

    Args:
        folder: Folder of a split, such as `imagenet/train`.
        classes: Required classes, those of the training images; None accepts any.
        progress: Called with the number of listed classes and the number of all classes.

    Raises:
        DataError: If the folder has no class folders, a class has no image, a file has the extension of another format,
            or the classes differ from the required ones.
    """
    found = find_classes(folder)
    if classes is not None and tuple(classes) != found:
        raise DataError(
            f"{folder} does not have the classes of the training images: {_differences(classes, found)}; the labels "
            "are the places of the sorted class folders, so both must have the same"
        )
    names: list[bytes] = []
    counts: list[int] = []
    for number, name in enumerate(found):
        files = _list_images(folder / name)
        names += [os.fsencode(file) for file in files]
        counts.append(len(files))
        if progress is not None:
            progress(number + 1, len(found))
    empty = [name for name, count in zip(found, counts, strict=True) if not count]
    if empty:
        raise DataError(f"{folder}: {_some(empty, 'class folder')} without images; remove or fill them")
    return ClassFolders(folder, found, np.array(names), np.repeat(np.arange(len(found)), counts))


def hold_out(images: ClassFolders, number: int) -> tuple[ClassFolders, ClassFolders]:
    """Splits images into all but the first ones of each class, and these.

    Args:
        images: Images of the training split.
        number: Number of images to hold out of each class.

    Raises:
        DataError: If a class would have no image left.
    """
    counts = np.bincount(images.labels, minlength=len(images.classes))
    small = [images.classes[place] for place in np.flatnonzero(counts <= number)]
    if small:
        raise DataError(f"{images.folder}: {_some(small, 'class')} of {number} images or fewer, all to be held out")
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    is_held = np.arange(len(images)) - starts[images.labels] < number
    return images.part(np.flatnonzero(~is_held)), images.part(np.flatnonzero(is_held))


def _list_images(folder: Path) -> list[str]:
    names = []
    for entry in _list(folder):
        if entry.is_dir():
            raise DataError(f"{entry.path} is a folder inside a class: the images are to be in {folder} itself")
        if not _is_image(entry.name):
            raise DataError(
                f"{entry.path} is not an image by its extension ({', '.join(EXTENSIONS)}); remove or convert it"
            )
        names.append(entry.name)
    return sorted(names)


def _list(folder: Path) -> list[os.DirEntry[str]]:
    """Returns the entries of a folder that are not hidden."""
    with os.scandir(folder) as entries:
        return [entry for entry in entries if not entry.name.startswith(".")]


def _is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS)


def _differences(expected: Sequence[str], found: Sequence[str]) -> str:
    missing, unknown = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    parts = [f"{_some(missing, 'class')} missing"] if missing else []
    return "; ".join([*parts, f"{_some(unknown, 'class')} unknown"] if unknown else parts)


def _some(names: Sequence[str], what: str) -> str:
    """Returns text such as `3 images (a, b, ...)`."""
    shown = ", ".join([*names[:_NUM_NAMED], *(["..."] if len(names) > _NUM_NAMED else [])])
    plural = what if len(names) == 1 else f"{what}es" if what.endswith("s") else f"{what}s"
    return f"{len(names)} {plural} ({shown})"
