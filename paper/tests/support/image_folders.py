"""Writes small trees of real JPEG files in ImageNet's layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("n01440764", "n01443537", "n02102040")


def make_picture(number: int, size: tuple[int, int] = (40, 32), seed: int = 0) -> Image.Image:
    """A bright stripe on soft noise, at a place that tells the class `number`; width and height as Pillow has them."""
    rng = np.random.default_rng((seed, number))
    width, height = size
    pixels = rng.integers(0, 90, (height, width, 3))
    first = number * height // len(CLASSES)
    pixels[first : first + height // len(CLASSES), :, number % 3] = 240
    return Image.fromarray(pixels.astype(np.uint8))


def write_folders(
    root: Path, images_per_class: int = 4, classes: tuple[str, ...] = CLASSES, split: str = "train"
) -> Path:
    """Writes `root/split/<class>/*.JPEG` and returns `root/split`; sizes differ from image to image."""
    prime = 11 if images_per_class <= 11 else 101
    for number, name in enumerate(classes):
        folder = root / split / name
        folder.mkdir(parents=True)
        for image in range(images_per_class):
            size = (40 + 3 * image, 32 + 5 * ((image + number) % 3))
            # Names whose order is not that of their numbers, as ImageNet's.
            picture = make_picture(number, size, seed=100 * (split == "val") + image)
            picture.save(folder / f"{name}_{(7 * image) % prime}.JPEG", quality=92)
    return root / split
