"""Known image sets: files with checksums, classes, scaling and splits.

Scaling and splits are those of Elsayed et al. (2020), which the paper follows. Imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ImageSetName = Literal["mnist", "fashion-mnist", "cifar10"]
Part = Literal["train", "test"]

CIFAR10_ARCHIVE = "cifar-10-binary.tar.gz"


@dataclass(frozen=True)
class ImageSet:
    """A published set of images.

    Attributes:
        title: Name of the set as its authors write it.
        image_shape: Channels, rows and columns of an image.
        classes: Names of the classes, in the order of the labels.
        num_images: Number of images in the published training and test files.
        value_range: Values that replace 0 and 255.
        validation_share: Share of the training images, from the first one, that is held back for validation.
        files: Names of the files of each part, in the order in which they are read.
        checksums: Checksum of the uncompressed content of each file: SHA-256, or the MD5 that the authors print.
        folders: Folders below a root in which tools store the files.
        remedy: How to get the files.
    """

    title: str
    image_shape: tuple[int, int, int]
    classes: tuple[str, ...]
    num_images: Mapping[str, int]
    value_range: tuple[float, float]
    validation_share: float
    files: Mapping[str, tuple[str, ...]]
    checksums: Mapping[str, str]
    folders: tuple[str, ...]
    remedy: str


_IDX_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_IDX_NUMBERS = {"train": 60_000, "test": 10_000}

IMAGE_SETS: Mapping[str, ImageSet] = {
    "mnist": ImageSet(
        title="MNIST",
        image_shape=(1, 28, 28),
        classes=tuple("0123456789"),
        num_images=_IDX_NUMBERS,
        value_range=(-1.0, 1.0),
        validation_share=0.08,
        files=_IDX_FILES,
        checksums={
            "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
        folders=("mnist", "MNIST/raw"),
        remedy="`smoe data fetch mnist` gets them",
    ),
    "fashion-mnist": ImageSet(
        title="Fashion-MNIST",
        image_shape=(1, 28, 28),
        classes=(
            "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
        ),
        num_images=_IDX_NUMBERS,
        value_range=(-1.0, 1.0),
        validation_share=0.08,
        files=_IDX_FILES,
        checksums={
            "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        },
        folders=("fashion-mnist", "FashionMNIST/raw"),
        remedy="`smoe data fetch fashion-mnist` gets them",
    ),
    "cifar10": ImageSet(
        title="CIFAR-10",
        image_shape=(3, 32, 32),
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        num_images={"train": 50_000, "test": 10_000},
        value_range=(0.0, 1.0),
        validation_share=0.1,
        files={
            "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
            "test": ("test_batch.bin",),
        },
        # Only the checksum of the archive is published: its files are recognised by their lengths and classes.
        checksums={CIFAR10_ARCHIVE: "c32a1d4ab5d03f1284b67883e8d87530"},
        folders=("cifar10", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"),
        remedy=f"bring the binary version of CIFAR-10, {CIFAR10_ARCHIVE}, unpacked or as it is",
    ),
}  # fmt: skip
