"""Files of small images in their formats, and images in memory as samples of a classifier."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from smoe.errors import DataError, suggest
from smoe_paper.experiments.samples import BatchedSamples
from smoe_paper.images.recipes import CIFAR10_ARCHIVE, IMAGE_SETS, ImageSet, Part


class LabelledImages(NamedTuple):
    """Images, uint8, `(N, C, H, W)`, and their classes, uint8, `(N,)`."""

    images: np.ndarray
    labels: np.ndarray


def find_files(name: str, root: Path, part: Part) -> list[Path]:
    """The files of a part of a set, compressed or not, in a root or in the folders that tools create there.

    An archive of CIFAR-10 replaces all its files.
    """
    if name not in IMAGE_SETS:
        raise DataError(f"no image set is named {name!r}; {suggest(name, IMAGE_SETS)}")
    image_set = IMAGE_SETS[name]
    folders = [root, *(root / folder for folder in image_set.folders)]
    for folder in folders:
        found = [_find(folder, file) for file in image_set.files[part]]
        if all(found):
            return [path for path in found if path is not None]
        if name == "cifar10" and (folder / CIFAR10_ARCHIVE).is_file():
            return [folder / CIFAR10_ARCHIVE]
    raise DataError(
        f"{image_set.title}: no {' and '.join(image_set.files[part][:2])} (or .gz) in {', '.join(map(str, folders))}; "
        f"{image_set.remedy}; files elsewhere are named by --data.root FOLDER"
    )


def _find(folder: Path, file: str) -> Path | None:
    # Some tools write `train-images.idx3-ubyte` with a dot, as old programs unpacked the files.
    stems = dict.fromkeys((file, file.replace("-idx", ".idx")))
    return next((path for stem in stems for path in (folder / stem, folder / f"{stem}.gz") if path.is_file()), None)


def read_images(name: str, root: Path, part: Part) -> LabelledImages:
    """Reads the published images of a part; other files are refused."""
    paths = find_files(name, root, part)
    image_set = IMAGE_SETS[name]
    try:
        images = _read_cifar10(image_set, paths, part) if name == "cifar10" else _read_idx(image_set, paths, part)
    except (EOFError, OSError, ValueError, zlib.error, tarfile.TarError, KeyError) as error:
        raise DataError(f"{paths[0]} cannot be read ({error}); {image_set.remedy}") from None
    expected = (image_set.num_images[part], *image_set.image_shape)
    if images.images.shape != expected or len(images.labels) != expected[0] or images.labels.max() > 9:
        raise DataError(
            f"{paths[0]} holds {len(images.labels):,} images of {images.images.shape[1:]}, but {image_set.title} has "
            f"{expected[0]:,} of {expected[1:]} in ten classes; {image_set.remedy}"
        )
    return images


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


def _check_published(content: bytes, path: Path, file: str, image_set: ImageSet) -> None:
    expected = image_set.checksums[file]
    # The authors of CIFAR-10 print an MD5, which has 32 digits.
    found = hashlib.new("md5" if len(expected) == 32 else "sha256", content, usedforsecurity=False).hexdigest()
    if found != expected:
        others = [other.title for other in IMAGE_SETS.values() if other.checksums.get(file) == found]
        what = f"that of {others[0]}" if others else f"its checksum begins with {found[:8]}, not {expected[:8]}"
        raise DataError(f"{path} is not the published {file} of {image_set.title}: {what}; {image_set.remedy}")


def _read_idx(image_set: ImageSet, paths: Sequence[Path], part: Part) -> LabelledImages:
    arrays: list[np.ndarray] = []
    for path, file, header in zip(paths, image_set.files[part], (16, 8), strict=True):
        content = _content(path)
        _check_published(content, path, file, image_set)
        arrays.append(np.frombuffer(content, np.uint8, offset=header))
    return LabelledImages(arrays[0].reshape(-1, *image_set.image_shape), arrays[1])


def _read_cifar10(image_set: ImageSet, paths: Sequence[Path], part: Part) -> LabelledImages:
    if paths[0].name == CIFAR10_ARCHIVE:
        _check_published(paths[0].read_bytes(), paths[0], CIFAR10_ARCHIVE, image_set)
        with tarfile.open(fileobj=io.BytesIO(_content(paths[0])), mode="r:") as archive:
            members = {Path(member.name).name: member for member in archive if member.isreg()}
            files = [archive.extractfile(members[name]) for name in image_set.files[part]]
            content = b"".join(file.read() for file in files if file is not None)
    else:
        # Their checksums are not published: they are recognised by their lengths and labels.
        content = b"".join(_content(path) for path in paths)
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    return LabelledImages(records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0])


class ImageSamples(BatchedSamples):
    """Images `(N, C, H, W)` with their classes, stored as bytes and scaled for each batch."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, value_range: tuple[float, float] = (0.0, 1.0)) -> None:
        low, high = value_range
        self.low, self.step = low, (high - low) / 255.0
        # Copied, because arrays from a file are read-only and torch has no read-only tensors.
        self.images = torch.from_numpy(np.array(images))
        self.labels = torch.from_numpy(labels.astype(np.int64))

    @property
    def image_shape(self) -> tuple[int, int, int]:
        channels, rows, columns = self.images.shape[1:]
        return channels, rows, columns

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The images `(B, C, H, W)`, float32, and their classes `(B,)`, int64."""
        which = torch.as_tensor(indices, dtype=torch.int64)
        images = self.images.index_select(0, which).float().mul_(self.step).add_(self.low)
        return images, self.labels.index_select(0, which)


class DrawnImages(BatchedSamples):
    """A random part of the samples, without repetition, drawn again for each epoch."""

    def __init__(self, samples: ImageSamples, number: int, seed: int) -> None:
        if not 1 <= number <= len(samples):
            raise ValueError(f"an epoch must have 1 to {len(samples):,} images, got {number:,}")
        self.samples, self.number, self.seed = samples, number, seed
        self.start_epoch(0)

    def start_epoch(self, epoch: int) -> None:
        """Draws from the seed and the number of the epoch alone, so that a resumed run draws the same samples."""
        generator = np.random.default_rng((self.seed, epoch))
        self._drawn = generator.permutation(len(self.samples))[: self.number]

    def __len__(self) -> int:
        return self.number

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Images `(B, C, H, W)` and their classes `(B,)`."""
        return self.samples.__getitems__(self._drawn[np.asarray(indices)].tolist())


def split_training(images: LabelledImages, image_set: ImageSet) -> dict[str, LabelledImages]:
    """Splits the training images into `train` and `validation`, which has the first images."""
    num_validation = int(image_set.validation_share * len(images.labels))
    parts = {"train": slice(num_validation, None), "validation": slice(0, num_validation)}
    return {split: LabelledImages(images.images[part], images.labels[part]) for split, part in parts.items()}
