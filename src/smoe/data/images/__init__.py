"""Images with class labels: MNIST, Fashion-MNIST and CIFAR-10 from their published files."""

from __future__ import annotations

from smoe.data.images.catalogue import IMAGE_SETS, ImageSet
from smoe.data.images.cifar10 import read_cifar10
from smoe.data.images.idx import read_idx
from smoe.data.images.image_files import LabelledImages, find_files, read_images

__all__ = ["IMAGE_SETS", "ImageSet", "LabelledImages", "find_files", "read_cifar10", "read_idx", "read_images"]
