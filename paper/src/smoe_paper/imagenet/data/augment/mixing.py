"""Mixes images and labels: mixup (Zhang et al., 2018) and CutMix (Yun et al., 2019).

As in torchvision's recipe, each image is mixed with the image before it in the batch, and a batch has one share.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F


def mixup(
    rng: np.random.Generator, images: torch.Tensor, shares: torch.Tensor, alpha: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Replaces images by weighted means of two images.

    Args:
        rng: Random generator of the draw.
        images: Images, `(B, C, H, W)`.
        shares: Shares of the classes, `(B, N)`.
        alpha: Parameter of the Beta distribution of the weight.
    """
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

    Args:
        rng: Random generator of the draws.
        images: Images, `(B, C, H, W)`.
        labels: Classes, `(B,)`.
        num_classes: Number of classes, N.
        alphas: Parameters of the Beta distributions of mixup and CutMix; 0 disables one.

    Returns:
        The images and the shares of the classes `(B, N)`, or the labels themselves if both are disabled.
    """
    ways = [(way, alpha) for way, alpha in zip((mixup, cutmix), alphas, strict=True) if alpha > 0.0]
    if not ways:
        return images, labels
    way, alpha = ways[rng.integers(len(ways))]
    return way(rng, images, F.one_hot(labels, num_classes).to(images.dtype), alpha)
