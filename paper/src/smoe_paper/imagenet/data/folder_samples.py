"""Images of class folders as samples of a classifier, read and augmented batch by batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from smoe_paper.imagenet.data.augment.mixing import mix
from smoe_paper.imagenet.data.augment.options import Augmentation
from smoe_paper.imagenet.data.class_folders import ClassFolders
from smoe_paper.imagenet.data.crops import evaluation_view, training_view
from smoe_paper.imagenet.data.read_image import read_image

# Separates the draws of a batch from those of its images.
_OF_BATCH = 1


class FolderImages(Dataset[tuple[Tensor, Tensor]]):
    """The centres of images, with their classes.

    Batches come from `__getitems__` already stacked: give a loader a `collate_fn` that returns them unchanged.

    Args:
        images: Files of the images.
        resize: Length of the shorter side before the centre is cut out.
        crop: Rows and columns of the centre.
    """

    def __init__(self, images: ClassFolders, resize: int = 232, crop: int = 224) -> None:
        if not 1 <= crop <= resize:
            raise ValueError(f"the centre must be at most as large as the resized image, {resize}, got {crop}")
        self.images, self.resize, self.crop = images, resize, crop

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Returns the image `(3, crop, crop)` and its class."""
        images, labels = self.__getitems__([index])
        return images[0], labels[0]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Returns the images `(B, 3, crop, crop)`, float32, and their classes `(B,)`, int64."""
        images = [evaluation_view(read_image(self.images.path(index)), self.resize, self.crop) for index in indices]
        return torch.stack(images), _labels(self.images, indices)


class AugmentedFolderImages(Dataset[tuple[Tensor, Tensor]]):
    """Random views of training images, drawn anew in each epoch, and mixed within each batch.

    Copy k of image i is the index `i + k * len(samples)`, see `smoe.training.task.ShuffledBatches`. The draws for it
    depend on the seed, the epoch, the image and the copy, and the mixing of a batch on its first index: neither
    depends on the process that reads it, or on a resume.

    Args:
        images: Files of the images.
        size: Rows and columns of a view.
        augmentation: Augmentations of the images.
        seed: Seed of all draws.
    """

    def __init__(self, images: ClassFolders, size: int, augmentation: Augmentation, seed: int) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        self.images, self.size, self.augmentation, self.seed = images, size, augmentation, seed
        self.epoch = 0

    def start_epoch(self, epoch: int) -> None:
        """Sets the epoch whose views are drawn."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Returns a view `(3, size, size)` and the class, not mixed."""
        return self._view(index), _labels(self.images, [index % len(self)])[0]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Returns the views `(B, 3, size, size)`, float32.

        The targets are the shares of the classes `(B, N)`; or the classes `(B,)`, int64, if nothing is mixed.
        """
        views = torch.stack([self._view(index) for index in indices])
        labels = _labels(self.images, [index % len(self) for index in indices])
        rng = np.random.default_rng((self.seed, self.epoch, indices[0], _OF_BATCH))
        options = self.augmentation
        return mix(rng, views, labels, len(self.images.classes), (options.mixup, options.cutmix))

    def _view(self, index: int) -> Tensor:
        if not 0 <= index < len(self) * self.augmentation.repetitions:
            raise IndexError(
                f"index must be in [0, {len(self) * self.augmentation.repetitions - 1}]: {len(self)} images with "
                f"{self.augmentation.repetitions} copies each, got {index}"
            )
        rng = np.random.default_rng((self.seed, self.epoch, index))
        image = read_image(self.images.path(index % len(self)))
        return training_view(rng, image, self.size, self.augmentation)


def _labels(images: ClassFolders, indices: Sequence[int]) -> Tensor:
    return torch.from_numpy(images.labels[np.asarray(indices)].astype(np.int64))
