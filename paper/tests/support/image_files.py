"""Small files in the formats of MNIST and CIFAR-10, for tests."""

from __future__ import annotations

import gzip
import hashlib
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smoe_paper.images.recipes import IMAGE_SETS

IDX_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def idx_bytes(values: np.ndarray) -> bytes:
    """An array as the content of an idx file."""
    header = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    return header + values.astype(np.uint8).tobytes()


def draw_images(num_images: int, shape: tuple[int, ...], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images `(N, *shape)` of noise with a bright row, whose place is the class; and their classes."""
    generator = np.random.default_rng(seed)
    labels = np.arange(num_images, dtype=np.uint8) % 10
    images = generator.integers(0, 60, (num_images, *shape), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[..., 2 + 2 * label, :] = 250
    return images, labels


def write_idx_set(folder: Path, num_train: int, num_test: int, *, compressed: bool = False) -> Path:
    """The four files of a set like MNIST, of small images."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, number in (("train", num_train), ("test", num_test)):
        for name, values in zip(IDX_FILES[part], draw_images(number, (28, 28), seed=len(part)), strict=True):
            content = idx_bytes(values)
            if compressed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)
    return folder


def cifar10_bytes(images: np.ndarray, labels: np.ndarray) -> bytes:
    """Images `(N, 3, 32, 32)` and their classes as the content of a file of CIFAR-10's binary version."""
    return np.concatenate([labels[:, None], images.reshape(len(images), -1)], axis=1).astype(np.uint8).tobytes()


def write_cifar10(folder: Path, num_per_file: int) -> Path:
    """The six files of CIFAR-10, of few images each."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    for seed, name in enumerate(names):
        (folder / name).write_bytes(cifar10_bytes(*draw_images(num_per_file, (3, 32, 32), seed)))
    return folder


def publish(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str = "mnist") -> None:
    """Lets the files of a folder stand for the published ones of a set."""
    image_set = IMAGE_SETS[name]
    numbers, checksums = {}, {}
    for part, files in image_set.files.items():
        contents = [(folder / file).read_bytes() for file in files]
        checksums |= {file: hashlib.sha256(content).hexdigest() for file, content in zip(files, contents, strict=True)}
        numbers[part] = len(contents[-1]) - 8 if name != "cifar10" else sum(map(len, contents)) // 3073
    monkeypatch.setitem(IMAGE_SETS, name, replace(image_set, num_images=numbers, checksums=checksums))  # type: ignore[arg-type]
