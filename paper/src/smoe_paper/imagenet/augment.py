"""Augmentation of the published recipe: TrivialAugment, random erasing, mixup and CutMix."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageOps


def mixup(
    rng: np.random.Generator, images: torch.Tensor, shares: torch.Tensor, alpha: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Replaces images by weighted means of two images."""
    own = float(rng.beta(alpha, alpha))
    return torch.lerp(images.roll(1, 0), images, own), torch.lerp(shares.roll(1, 0), shares, own)


def cutmix(
    rng: np.random.Generator, images: torch.Tensor, shares: torch.Tensor, alpha: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pastes a rectangle of another image; the labels are mixed by the areas. Has the arguments of `mixup`.

    The rectangle has the image's proportions and a random centre; the part outside the image is cut off.
    """
    height, width = images.shape[-2:]
    half = 0.5 * math.sqrt(1.0 - float(rng.beta(alpha, alpha)))
    x, y = int(rng.integers(width)), int(rng.integers(height))
    half_width, half_height = int(half * width), int(half * height)
    left, right = max(x - half_width, 0), min(x + half_width, width)
    top, bottom = max(y - half_height, 0), min(y + half_height, height)
    mixed = images.clone()
    mixed[..., top:bottom, left:right] = images.roll(1, 0)[..., top:bottom, left:right]
    own = 1.0 - (right - left) * (bottom - top) / (width * height)
    return mixed, torch.lerp(shares.roll(1, 0), shares, own)


def mix(
    rng: np.random.Generator, images: torch.Tensor, labels: torch.Tensor, num_classes: int, alphas: tuple[float, float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mixes a batch by mixup or CutMix with equal probability.

    Returns:
        The images and the shares of the classes `(B, N)`, or the labels themselves if both are disabled.
    """
    ways = [(way, alpha) for way, alpha in zip((mixup, cutmix), alphas, strict=True) if alpha > 0.0]
    if not ways:
        return images, labels
    way, alpha = ways[rng.integers(len(ways))]
    return way(rng, images, F.one_hot(labels, num_classes).to(images.dtype), alpha)


# Maximal number of draws, as in torchvision.
_NUM_TRIES = 10
ERASED_AREA = (0.02, 0.33)
ERASED_RATIO = (0.3, 3.3)


def draw_crop(
    rng: np.random.Generator, height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[int, int, int, int]:
    """Returns top, left, height and width of a random crop.

    Area and logarithm of the ratio are uniform. If ten draws do not fit in the image, the crop is the largest central
    one of an allowed ratio.
    """
    for _ in range(_NUM_TRIES):
        area, aspect = _draw_shape(rng, height * width, scale, ratio)
        columns, rows = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < columns <= width and 0 < rows <= height:
            return int(rng.integers(height - rows + 1)), int(rng.integers(width - columns + 1)), rows, columns
    rows, columns = height, width
    if width / height < ratio[0]:
        rows = round(width / ratio[0])
    elif width / height > ratio[1]:
        columns = round(height * ratio[1])
    return (height - rows) // 2, (width - columns) // 2, rows, columns


def erase(rng: np.random.Generator, image: torch.Tensor) -> None:
    """Sets a random rectangle of a normalised image `(C, H, W)` to 0, its mean, in place.

    Nothing is erased if ten draws give no rectangle smaller than the image on both sides.
    """
    height, width = image.shape[-2:]
    for _ in range(_NUM_TRIES):
        area, aspect = _draw_shape(rng, height * width, ERASED_AREA, ERASED_RATIO)
        rows, columns = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if rows < height and columns < width:
            top, left = int(rng.integers(height - rows + 1)), int(rng.integers(width - columns + 1))
            image[..., top : top + rows, left : left + columns] = 0.0
            return


def _draw_shape(
    rng: np.random.Generator, area: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[float, float]:
    return area * rng.uniform(*scale), math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))


NUM_STRENGTHS = 31
Operation = Callable[[Image.Image, float], Image.Image]


def _affine(make_inverse: Callable[[float], tuple[float, ...]]) -> Operation:
    """A transform with black beyond the borders; the matrix of a strength maps a new pixel to the old one."""

    def transform(image: Image.Image, strength: float) -> Image.Image:
        return image.transform(image.size, Image.Transform.AFFINE, make_inverse(strength), Image.Resampling.BILINEAR)

    return transform


def _enhance(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Operation:
    return lambda image, strength: kind(image).enhance(1.0 + strength)


_UP_TO_1 = np.linspace(0.0, 0.99, NUM_STRENGTHS)
_PIXELS = np.linspace(0.0, 32.0, NUM_STRENGTHS)
# Each operation with its strengths (None if it has none) and whether half of them are negative. A shear is in pixels
# for each pixel from the top or the left; images are shifted to the right or down, by whole pixels.
OPERATIONS: dict[str, tuple[Operation, np.ndarray | None, bool]] = {
    "identity": (lambda image, _: image, None, False),
    "shear_x": (_affine(lambda strength: (1.0, strength, 0.0, 0.0, 1.0, 0.0)), _UP_TO_1, True),
    "shear_y": (_affine(lambda strength: (1.0, 0.0, 0.0, strength, 1.0, 0.0)), _UP_TO_1, True),
    "translate_x": (_affine(lambda strength: (1.0, 0.0, -int(strength), 0.0, 1.0, 0.0)), _PIXELS, True),
    "translate_y": (_affine(lambda strength: (1.0, 0.0, 0.0, 0.0, 1.0, -int(strength))), _PIXELS, True),
    "rotate": (
        lambda image, degrees: image.rotate(degrees, Image.Resampling.BILINEAR),
        np.linspace(0.0, 135.0, NUM_STRENGTHS),
        True,
    ),
    "brightness": (_enhance(ImageEnhance.Brightness), _UP_TO_1, True),
    "color": (_enhance(ImageEnhance.Color), _UP_TO_1, True),
    "contrast": (_enhance(ImageEnhance.Contrast), _UP_TO_1, True),
    "sharpness": (_enhance(ImageEnhance.Sharpness), _UP_TO_1, True),
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
    """The RGB image changed by one random operation."""
    name, strength = draw_operation(rng)
    return OPERATIONS[name][0](image, strength)
