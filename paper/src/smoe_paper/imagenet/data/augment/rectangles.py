"""Draws random rectangles: the crop of a training image, and the part that is erased (Zhong et al., 2020)."""

from __future__ import annotations

import math

import numpy as np
import torch

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

    Args:
        rng: Random generator of the draws.
        height: Height of the image.
        width: Width of the image.
        scale: Range of the share of the image's area.
        ratio: Range of width over height.
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
