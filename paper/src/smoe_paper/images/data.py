"""Files of small images in their formats, and images in memory as samples of a classifier."""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import stat
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from smoe.errors import DataError, suggest
from smoe_paper.images.recipes import CIFAR10_ARCHIVE, IMAGE_SETS, ImageSet, Part

_GZIP_MAGIC = b"\x1f\x8b"


def read_content(path: Path) -> bytes:
    """The content of a file, decompressed if it is compressed by gzip, whatever its name."""
    try:
        # A pipe would be waited for, and a device may never end.
        if not stat.S_ISREG(path.stat().st_mode):
            raise DataError(f"{path} is not a regular file, but a pipe, device or folder")
        with path.open("rb") as file:
            is_compressed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        return gzip.decompress(path.read_bytes()) if is_compressed else path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged: {error}; get the file again") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


def check_published(
    path: Path,
    name: str,
    content: bytes,
    checksums: Mapping[str, Mapping[str, str]],
    title: str,
    *,
    verify: bool,
    notify: Callable[[str], None],
) -> None:
    expected = checksums[title].get(name)
    if expected is None:
        return
    found = _digest(content, expected)
    if found == expected:
        return
    for other, files in checksums.items():
        if files.get(name) == found:
            raise DataError(f"{path} is the file of {other}, not of {title}; name the folder of {title}")
    text = f"{path} is not the published {name} of {title} (its checksum begins with {found[:8]}, not {expected[:8]})"
    if verify:
        raise DataError(f"{text}: get it again, or, for images of your own in this format, give --data.verify False")
    notify(f"{text}: used as it is")


def _digest(content: bytes, like: str) -> str:
    """A checksum of the same kind as another: MD5 has 32 digits, SHA-256 has 64."""
    algorithm = "md5" if len(like) == 32 else "sha256"
    return hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()


_UNSIGNED_BYTE = 0x08
_TYPES = {0x08: "uint8", 0x09: "int8", 0x0B: "int16", 0x0C: "int32", 0x0D: "float32", 0x0E: "float64"}


def parse_idx(content: bytes, path: Path, num_dimensions: int) -> np.ndarray:
    """The values of the content of a file; `path` appears in error messages."""
    if len(content) < 4 or content[0] or content[1] or content[2] not in _TYPES:
        raise DataError(
            f"{path} is not an idx file: it begins with {content[:4].hex(' ') or 'nothing'}, not with 00 00 08 "
            f"{num_dimensions:02x}; is it of another format?"
        )
    if content[2] != _UNSIGNED_BYTE:
        raise DataError(f"{path} holds values of type {_TYPES[content[2]]}; images and labels are uint8")
    if content[3] != num_dimensions:
        kind = {1: "labels", 3: "images"}.get(num_dimensions, "values")
        raise DataError(
            f"{path} has {content[3]} dimensions, but {kind} have {num_dimensions}: were images and labels exchanged?"
        )
    header = 4 + 4 * num_dimensions
    if len(content) < header:
        raise DataError(f"{path} ends within its header, after {len(content)} bytes; get the file again")
    # Python integers: a product of three 32-bit numbers from a damaged header must not wrap.
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", num_dimensions, offset=4))
    if 0 in shape:
        raise DataError(f"{path} holds nothing: its shape is {shape}")
    expected = header + math.prod(shape)
    if len(content) != expected:
        raise DataError(
            f"{path} has {len(content):,} bytes, but its header says {' x '.join(map(str, shape))}, which is "
            f"{expected:,}: the file is {'cut off' if len(content) < expected else 'too long'}; get it again"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


NUM_CLASSES = 10
IMAGE_SHAPE = (3, 32, 32)
RECORD_BYTES = 1 + 3 * 32 * 32


def parse_cifar10(content: bytes, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of the content of a file; `path` appears in error messages."""
    num_records, rest = divmod(len(content), RECORD_BYTES)
    if rest or not num_records:
        raise DataError(
            f"{path} has {len(content):,} bytes, which are not whole records of {RECORD_BYTES} bytes (the published "
            f"files have 10,000 records, 30,730,000 bytes): is it cut off, or not the binary version of CIFAR-10?"
        )
    records = np.frombuffer(content, np.uint8).reshape(num_records, RECORD_BYTES)
    labels = records[:, 0]
    if labels.max() >= NUM_CLASSES:
        where = int((labels >= NUM_CLASSES).argmax())
        raise DataError(f"{path}: the label of record {where} is {labels[where]}, but labels are 0 to 9")
    return records[:, 1:].reshape(num_records, *IMAGE_SHAPE), labels


def read_archive(path: Path, names: tuple[str, ...]) -> list[bytes]:
    """The contents of files of the archive, found by name in any of its folders."""
    found: dict[str, bytes] = {}
    content = io.BytesIO(read_content(path))
    try:
        with tarfile.open(fileobj=content, mode="r:") as archive:
            for member in archive:
                name = Path(member.name).name
                file = archive.extractfile(member) if name in names and member.isreg() else None
                if file is not None:
                    found[name] = file.read()
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise DataError(f"{path} is damaged: {error}; get the archive again") from None
    missing = [name for name in names if name not in found]
    if missing:
        raise DataError(f"{path} does not hold {', '.join(missing)}: is it the binary version of CIFAR-10?")
    return [found[name] for name in names]


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
    if name not in IMAGE_SETS:
        raise DataError(f"no image set is named {name!r}; {suggest(name, IMAGE_SETS)}")
    return IMAGE_SETS[name]


def find_files(name: str, root: Path, part: Part) -> list[Path]:
    """The files of a part of a set, compressed or not, in a root or in the folders that tools create there.

    An archive of CIFAR-10 replaces all its files.
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


class ImageSamples(Dataset[tuple[Tensor, Tensor]]):
    """Scaled images with their classes. They are stored as bytes and scaled for each batch, to save memory.

    Whole batches come from `__getitems__` already stacked, so a loader must leave them alone:
    `DataLoader(samples, batch_size=32, collate_fn=ImageSamples.collate)`.

    Args:
        images: Images, uint8, `(N, C, H, W)`.
        labels: Classes, integers from 0, `(N,)`.
    """

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

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, label = self.__getitems__([index])
        return image[0], label[0]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The images `(B, C, H, W)`, float32, and their classes `(B,)`, int64."""
        which = torch.as_tensor(indices, dtype=torch.int64)
        images = self.images.index_select(0, which).float().mul_(self.step).add_(self.low)
        return images, self.labels.index_select(0, which)

    @staticmethod
    def collate(batch: Any) -> tuple[Tensor, Tensor]:
        return batch


class DrawnImages(Dataset[tuple[Tensor, Tensor]]):
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

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.samples[int(self._drawn[index])]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Images `(B, C, H, W)` and their classes `(B,)`."""
        return self.samples.__getitems__(self._drawn[np.asarray(indices)].tolist())


def split_training(images: LabelledImages, image_set: ImageSet) -> dict[str, LabelledImages]:
    """Splits the training images into `train` and `validation`, which has the first images."""
    num_validation = int(image_set.validation_share * len(images.labels))
    return {
        "train": LabelledImages(images.images[num_validation:], images.labels[num_validation:]),
        "validation": LabelledImages(images.images[:num_validation], images.labels[:num_validation]),
    }
