"""TrivialAugment with the wide search space (Müller and Hutter, 2021) for Pillow images.

The operations are Pillow's, as in the authors' code and in torchvision, whose ResNet-50 was trained with them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from smoe_paper.imagenet.data.pillow import Image, ImageEnhance, ImageOps

NUM_STRENGTHS = 31
Operation = Callable[[Image.Image, float], Image.Image]


def shear_x(image: Image.Image, strength: float) -> Image.Image:
    """Shifts each row by a number of pixels for each pixel from the top."""
    return _transform(image, (1.0, strength, 0.0, 0.0, 1.0, 0.0))


def shear_y(image: Image.Image, strength: float) -> Image.Image:
    """Shifts each column by a number of pixels for each pixel from the left."""
    return _transform(image, (1.0, 0.0, 0.0, strength, 1.0, 0.0))


def translate_x(image: Image.Image, strength: float) -> Image.Image:
    """Shifts the image to the right by whole pixels."""
    return _transform(image, (1.0, 0.0, -int(strength), 0.0, 1.0, 0.0))


def translate_y(image: Image.Image, strength: float) -> Image.Image:
    """Shifts the image down by whole pixels."""
    return _transform(image, (1.0, 0.0, 0.0, 0.0, 1.0, -int(strength)))


def _transform(image: Image.Image, inverse: tuple[float, ...]) -> Image.Image:
    """Transforms the image, with black beyond its borders; the matrix maps a new pixel to the old one."""
    return image.transform(image.size, Image.Transform.AFFINE, inverse, Image.Resampling.BILINEAR)


def _rotate(image: Image.Image, strength: float) -> Image.Image:
    return image.rotate(strength, Image.Resampling.BILINEAR)


def _enhance(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Operation:
    return lambda image, strength: kind(image).enhance(1.0 + strength)


# Each operation with its strengths (None if it has none) and whether half of them are negative.
OPERATIONS: dict[str, tuple[Operation, np.ndarray | None, bool]] = {
    "identity": (lambda image, _: image, None, False),
    "shear_x": (shear_x, np.linspace(0.0, 0.99, NUM_STRENGTHS), True),
    "shear_y": (shear_y, np.linspace(0.0, 0.99, NUM_STRENGTHS), True),
    "translate_x": (translate_x, np.linspace(0.0, 32.0, NUM_STRENGTHS), True),
    "translate_y": (translate_y, np.linspace(0.0, 32.0, NUM_STRENGTHS), True),
    "rotate": (_rotate, np.linspace(0.0, 135.0, NUM_STRENGTHS), True),
    "brightness": (_enhance(ImageEnhance.Brightness), np.linspace(0.0, 0.99, NUM_STRENGTHS), True),
    "color": (_enhance(ImageEnhance.Color), np.linspace(0.0, 0.99, NUM_STRENGTHS), True),
    "contrast": (_enhance(ImageEnhance.Contrast), np.linspace(0.0, 0.99, NUM_STRENGTHS), True),
    "sharpness": (_enhance(ImageEnhance.Sharpness), np.linspace(0.0, 0.99, NUM_STRENGTHS), True),
    # Number of bits that remain: 8 to 2.
    "posterize": (
        lambda image, bits: ImageOps.posterize(image, int(bits)),
        8 - np.round(np.arange(NUM_STRENGTHS) / ((NUM_STRENGTHS - 1) / 6)),
        False,
    ),
    # Values from this threshold on are inverted.
    "solarize": (
        lambda image, threshold: ImageOps.solarize(image, threshold),  # type: ignore[arg-type]
        np.linspace(255.0, 0.0, NUM_STRENGTHS),
        False,
    ),
    "autocontrast": (lambda image, _: ImageOps.autocontrast(image), None, False),
    "equalize": (lambda image, _: ImageOps.equalize(image), None, False),
}
_NAMES = tuple(OPERATIONS)


def draw_operation(rng: np.random.Generator) -> tuple[str, float]:
    """Draws an operation and one of its strengths, all with equal probability."""
    name = _NAMES[rng.integers(len(_NAMES))]
    _, strengths, is_signed = OPERATIONS[name]
    strength = 0.0 if strengths is None else float(strengths[rng.integers(NUM_STRENGTHS)])
    return name, -strength if is_signed and rng.integers(2) else strength


def trivial_augment(rng: np.random.Generator, image: Image.Image) -> Image.Image:
    """Returns the RGB image changed by one random operation."""
    name, strength = draw_operation(rng)
    return OPERATIONS[name][0](image, strength)
