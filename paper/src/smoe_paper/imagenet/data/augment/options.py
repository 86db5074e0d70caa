"""Options of the augmentation of training images. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Augmentation:
    """Augmentations of training images, in this order; the defaults are those of torchvision's ResNet-50 recipe.

    Attributes:
        crop_scale: Smallest and largest share of the image's area in a crop.
        crop_ratio: Smallest and largest ratio of width to height of a crop.
        flip: Probability of mirroring an image.
        trivial_augment: Apply one random operation of random strength to each image (TrivialAugment, wide).
        erasing: Probability of erasing a rectangle.
        mixup: Parameter of mixup's Beta distribution; 0 disables mixup.
        cutmix: Parameter of CutMix's Beta distribution; 0 disables CutMix. With both, each batch uses one of them.
        repetitions: Number of separately augmented copies of each image in a batch; an epoch then has fewer images.
    """

    crop_scale: tuple[float, float] = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    trivial_augment: bool = True
    erasing: float = 0.1
    mixup: float = 0.2
    cutmix: float = 1.0
    repetitions: int = 4

    def __post_init__(self) -> None:
        low, high = self.crop_scale
        if not 0.0 < low <= high <= 1.0:
            raise ValueError(f"crop_scale must be two rising shares above 0 and up to 1, got {self.crop_scale}")
        if not 0.0 < self.crop_ratio[0] <= self.crop_ratio[1]:
            raise ValueError(f"crop_ratio must be two rising positive numbers, got {self.crop_ratio}")
        for name in ("flip", "erasing"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must be a probability, got {getattr(self, name)}")
        for name in ("mixup", "cutmix"):
            # `not >=` also refuses NaN.
            if not getattr(self, name) >= 0.0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.repetitions < 1:
            raise ValueError(f"repetitions must be at least 1, got {self.repetitions}")
