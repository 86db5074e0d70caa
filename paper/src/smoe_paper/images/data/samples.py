"""Images in memory as samples of a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from smoe_paper.images.data.catalogue import ImageSet
from smoe_paper.images.data.files import LabelledImages


class ImageSamples(Dataset[tuple[Tensor, Tensor]]):
    """Scaled images with their classes. They are stored as bytes and scaled for each batch, to save memory.

    Whole batches come from `__getitems__` already stacked, so a loader must leave them alone:
    `DataLoader(samples, batch_size=32, collate_fn=ImageSamples.collate)`.

    Args:
        images: Images, uint8, `(N, C, H, W)`.
        labels: Classes, integers from 0, `(N,)`.
        value_range: Values that replace 0 and 255.
    """

    def __init__(self, images: np.ndarray, labels: np.ndarray, value_range: tuple[float, float] = (0.0, 1.0)) -> None:
        if images.ndim != 4 or images.dtype != np.uint8 or labels.shape != images.shape[:1] or not len(images):
            raise ValueError(
                f"images must be uint8 (N, C, H, W) and labels (N,), got {images.dtype} of {images.shape} and "
                f"{labels.shape}"
            )
        low, high = value_range
        # `not <` also refuses NaN.
        if not low < high:
            raise ValueError(f"value_range must be a smaller and a larger value, got {low} and {high}")
        self.low, self.step = low, (high - low) / 255.0
        # Copied, because arrays from a file are read-only and torch has no read-only tensors.
        self.images = torch.from_numpy(np.array(images))
        self.labels = torch.from_numpy(labels.astype(np.int64))

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, rows and columns of an image."""
        channels, rows, columns = self.images.shape[1:]
        return channels, rows, columns

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Returns the image `(C, H, W)`, float32, and its class, a scalar of int64."""
        image, label = self.__getitems__([index])
        return image[0], label[0]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Returns the images `(B, C, H, W)`, float32, and their classes `(B,)`, int64."""
        which = torch.as_tensor(indices, dtype=torch.int64)
        if which.numel() and not 0 <= int(which.min()) <= int(which.max()) < len(self):
            raise IndexError(f"index must be in [0, {len(self) - 1}], got {int(which.min())} to {int(which.max())}")
        images = self.images.index_select(0, which).float().mul_(self.step).add_(self.low)
        return images, self.labels.index_select(0, which)

    @staticmethod
    def collate(batch: Any) -> tuple[Tensor, Tensor]:
        """Return the batch as it is: `__getitems__` has stacked it, and torch's default would stack it again."""
        return batch


class DrawnImages(Dataset[tuple[Tensor, Tensor]]):
    """A random part of the samples, without repetition, drawn again for each epoch.

    Args:
        samples: Samples to draw from.
        number: Number of samples in an epoch.
        seed: Seed of the draws.
    """

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

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Returns an image `(C, H, W)` and its class."""
        return self.samples[int(self._drawn[index])]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Returns images `(B, C, H, W)` and their classes `(B,)`."""
        return self.samples.__getitems__(self._drawn[np.asarray(indices)].tolist())


def split_training(images: LabelledImages, image_set: ImageSet) -> dict[str, LabelledImages]:
    """Splits the training images into `train` and `validation`, which has the first images."""
    num_validation = int(image_set.validation_share * len(images.labels))
    return {
        "train": LabelledImages(images.images[num_validation:], images.labels[num_validation:]),
        "validation": LabelledImages(images.images[:num_validation], images.labels[:num_validation]),
    }
