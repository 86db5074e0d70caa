"""Finds and reads the files of an image set and compares them with the published ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from smoe.errors import DataError, suggest
from smoe_paper.images.data.catalogue import CIFAR10_ARCHIVE, IMAGE_SETS, ImageSet, Part
from smoe_paper.images.data.cifar10 import parse_cifar10, read_archive
from smoe_paper.images.data.idx import parse_idx
from smoe_paper.images.data.whole_files import check_published, read_content

_CHECKSUMS = {image_set.title: image_set.checksums for image_set in IMAGE_SETS.values()}


@dataclass(frozen=True)
class LabelledImages:
    """Images and their classes.

    Attributes:
        images: Images, uint8, `(N, C, H, W)`.
        labels: Classes, uint8, `(N,)`.
    """

    images: np.ndarray
    labels: np.ndarray


def find_image_set(name: str) -> ImageSet:
    """Returns the set with a name.

    Raises:
        DataError: If there is no such set; the message suggests the nearest name.
    """
    if name not in IMAGE_SETS:
        raise DataError(f"no image set is named {name!r}; {suggest(name, IMAGE_SETS)}")
    return IMAGE_SETS[name]


def find_files(name: str, root: Path, part: Part) -> list[Path]:
    """Returns the files of a part of a set, compressed or not, in a root or in the folders that tools create there.

    An archive of CIFAR-10 replaces all its files.

    Raises:
        DataError: If a file is missing; the message lists the places that were searched.
    """
    image_set = find_image_set(name)
    folders = [root, *(root / folder for folder in image_set.folders)]
    for folder in folders:
        found = [_find(folder, file) for file in image_set.files[part]]
        if all(path is not None for path in found):
            return [path for path in found if path is not None]
        archive = folder / CIFAR10_ARCHIVE
        if CIFAR10_ARCHIVE in image_set.checksums and archive.is_file():
            return [archive]
        if any(path is not None for path in found):
            missing = [file for file, path in zip(image_set.files[part], found, strict=True) if path is None]
            raise DataError(f"{folder} does not hold {' and '.join(missing)} of {image_set.title}; {image_set.remedy}")
    looked = ", ".join(str(folder) for folder in folders)
    raise DataError(
        f"{image_set.title}: no {image_set.files[part][0]} (or .gz) in {looked}; {image_set.remedy}; files elsewhere "
        "are named by --data.root FOLDER"
    )


def read_images(
    name: str, root: Path, part: Part, *, verify: bool = True, notify: Callable[[str], None] = print
) -> LabelledImages:
    """Returns the images of a part of a set.

    Args:
        name: `mnist`, `fashion-mnist` or `cifar10`.
        root: Folder of the files, or one above it; see `find_files`.
        part: `train` or `test`.
        verify: Refuse files of the right format whose content differs from the published files.
        notify: Receives messages about files that differ from the published ones, without `verify`.

    Raises:
        DataError: If a file is missing, damaged or refused.
    """
    image_set = find_image_set(name)
    paths = find_files(name, root, part)
    if name == "cifar10":
        images = _read_cifar10(image_set, paths, part, verify, notify)
    else:
        images = _read_idx_pair(image_set, paths, part, verify, notify)
    _check_images(image_set, images, paths, part, verify)
    return images


def _find(folder: Path, file: str) -> Path | None:
    # Some tools write `train-images.idx3-ubyte` with a dot, as old programs unpacked the files.
    dotted = file.replace("-idx", ".idx")
    candidates = (folder / name for stem in dict.fromkeys((file, dotted)) for name in (stem, f"{stem}.gz"))
    return next((path for path in candidates if path.is_file()), None)


def _read_idx_pair(
    image_set: ImageSet, paths: Sequence[Path], part: Part, verify: bool, notify: Callable[[str], None]
) -> LabelledImages:
    arrays: list[np.ndarray] = []
    for path, name, num_dimensions in zip(paths, image_set.files[part], (3, 1), strict=True):
        content = read_content(path)
        # The format is checked first: the length of a truncated file is a better explanation than its checksum.
        arrays.append(parse_idx(content, path, num_dimensions))
        check_published(path, name, content, _CHECKSUMS, image_set.title, verify=verify, notify=notify)
    images, labels = arrays
    if len(images) != len(labels):
        raise DataError(f"{paths[0]} has {len(images):,} images, but {paths[1]} {len(labels):,} labels")
    return LabelledImages(images[:, None], labels)


def _read_cifar10(
    image_set: ImageSet, paths: Sequence[Path], part: Part, verify: bool, notify: Callable[[str], None]
) -> LabelledImages:
    names = image_set.files[part]
    if paths[0].name == CIFAR10_ARCHIVE:
        (archive,) = paths
        check_published(
            archive, archive.name, archive.read_bytes(), _CHECKSUMS, image_set.title, verify=verify, notify=notify
        )
        contents = read_archive(archive, names)
        paths = [archive / name for name in names]
    else:
        contents = [read_content(path) for path in paths]
    batches = [parse_cifar10(content, path) for content, path in zip(contents, paths, strict=True)]
    images = LabelledImages(*(np.concatenate(arrays) for arrays in zip(*batches, strict=True)))
    counts = np.bincount(images.labels, minlength=len(image_set.classes))
    expected = image_set.num_images[part] // len(image_set.classes)
    if (counts != expected).any():
        text = (
            f"{paths[0].parent}: the published {part} images of {image_set.title} are {expected:,} of each class, but "
            f"there are {', '.join(map(str, counts))}"
        )
        if verify:
            raise DataError(f"{text}: get the files again, or, for images of your own, give --data.verify False")
        notify(f"{text}: used as they are")
    return images


def _check_images(image_set: ImageSet, images: LabelledImages, paths: Sequence[Path], part: Part, verify: bool) -> None:
    shape, num_classes = images.images.shape[1:], len(image_set.classes)
    if shape[0] != image_set.image_shape[0] or min(shape) < 1:
        raise DataError(f"{paths[0]} has images of {shape}, but {image_set.title} has {image_set.image_shape}")
    if verify and (len(images.labels), *shape) != (image_set.num_images[part], *image_set.image_shape):
        raise DataError(
            f"{paths[0]}: {len(images.labels):,} images of {shape}, but {image_set.title} has "
            f"{image_set.num_images[part]:,} of {image_set.image_shape}"
        )
    if images.labels.max() >= num_classes:
        where = int((images.labels >= num_classes).argmax())
        raise DataError(
            f"{paths[-1]}: the label of image {where} is {images.labels[where]}, but labels are 0 to {num_classes - 1}"
        )
