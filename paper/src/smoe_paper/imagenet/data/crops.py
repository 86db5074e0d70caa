"""Crops and normalises images: a random crop in training, the centre in evaluation."""

from __future__ import annotations

import numpy as np
import torch

from smoe_paper.imagenet.data.augment.options import Augmentation
from smoe_paper.imagenet.data.augment.rectangles import draw_crop, erase
from smoe_paper.imagenet.data.augment.trivial_augment import trivial_augment
from smoe_paper.imagenet.data.pillow import Image

# The usual mean and standard deviation of the channels of ImageNet's images.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def training_view(rng: np.random.Generator, image: Image.Image, size: int, options: Augmentation) -> torch.Tensor:
    """Returns a random, augmented part of the image, `(3, size, size)`.

    Args:
        rng: Random generator of all draws.
        image: RGB image.
        size: Rows and columns of the result.
        options: Augmentations; mixing is done for a whole batch.
    """
    top, left, rows, columns = draw_crop(rng, image.height, image.width, options.crop_scale, options.crop_ratio)
    # Cropped first: with Pillow's `box`, pixels outside the crop would enter the filter.
    part = image.crop((left, top, left + columns, top + rows)).resize((size, size), Image.Resampling.BILINEAR)
    if rng.random() < options.flip:
        part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if options.trivial_augment:
        part = trivial_augment(rng, part)
    view = normalised(part)
    if rng.random() < options.erasing:
        erase(rng, view)
    return view


def evaluation_view(image: Image.Image, resize: int, crop: int) -> torch.Tensor:
    """Returns the centre of the image, `(3, crop, crop)`.

    Args:
        image: RGB image.
        resize: Length of the shorter side before the centre is cut out.
        crop: Rows and columns of the centre.
    """
    short = min(image.size)
    width, height = (resize if side == short else int(resize * side / short) for side in image.size)
    resized = image if (width, height) == image.size else image.resize((width, height), Image.Resampling.BILINEAR)
    top, left = round((height - crop) / 2.0), round((width - crop) / 2.0)
    return normalised(resized.crop((left, top, left + crop, top + crop)))


def normalised(image: Image.Image) -> torch.Tensor:
    """Returns an RGB image as float32, `(3, H, W)`, each channel normalised by its mean and standard deviation."""
    # np.array and not asarray: torch warns about read-only memory.
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).to(torch.float32, memory_format=torch.contiguous_format)
    return pixels.div_(255.0).sub_(torch.tensor(MEAN)[:, None, None]).div_(torch.tensor(STD)[:, None, None])
