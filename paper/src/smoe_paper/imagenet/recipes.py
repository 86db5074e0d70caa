"""Recipes of ImageNet (paper section 3.4 and its appendix). Imports no torch.

The paper adapts torchvision's recipe for ResNet-50 ("IMAGENET1K_V2"). Both state batch, epochs, learning rate, warm-up,
momentum, schedule and weight decay; the other settings are torchvision's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from smoe.rules import Rule
from smoe.training.plan import TrainingPlan
from smoe_paper.experiments.optimizers import Adam, SgdMomentum
from smoe_paper.experiments.recipe import Recipe
from smoe_paper.imagenet.data.augment.options import Augmentation
from smoe_paper.imagenet.model_options import (
    AddedSpatialMoEResNet50Model,
    ImageNetModel,
    LowRankLocalResNet50Model,
    ResNet50Model,
    SpatialMoEResNet50Model,
)
from smoe_paper.images.recipes import IMAGE_RULE


@dataclass(frozen=True)
class ImageNetData:
    """Images in `root/train/<class>/*.JPEG` and `root/val/<class>/*.JPEG`, with any number of classes.

    Some training images are held back to choose the best epoch, so that `val` does not influence the result.
    `--data.held-out-per-class 0` is torchvision's way: all training images, and `val` for validation and test.

    Attributes:
        root: Folder of `train` and `val`.
        train_size: Rows and columns of training crops.
        resize: Length of the shorter side in evaluation, before the centre is cut out.
        crop: Rows and columns of the centre. Gates and tables are interpolated to its grids.
        interpolation: Method of this interpolation. Use `nearest` for gates that start as white noise.
        held_out_per_class: Number of training images of each class that are held back to choose the best epoch.
    """

    root: Path | None = None
    train_size: int = 176
    resize: int = 232
    crop: int = 224
    interpolation: Literal["linear", "nearest"] = "linear"
    held_out_per_class: int = 10

    def __post_init__(self) -> None:
        for name in ("train_size", "crop"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.resize < self.crop:
            raise ValueError(f"resize must be at least crop, {self.crop}, got {self.resize}")
        if self.held_out_per_class < 0:
            raise ValueError(f"held_out_per_class must not be negative, got {self.held_out_per_class}")


IMAGENET_TRAINING = TrainingPlan(
    # The paper's 64 processes of 128; batch normalisation uses parts of 128, whatever the number of processes.
    batch_size=8192,
    part_size=128,
    evaluation_batch_size=128,
    max_epochs=600,
    monitor="accuracy",
    monitor_mode="max",
    schedule="cosine",
    warmup_epochs=5,
    warmup_start=0.01,
    early_stop_patience=600,
    stop_at=None,
    average_every=32,
    average_decay=0.99998,
    num_workers=4,
)


@dataclass(frozen=True)
class ImageNetRecipe(Recipe):
    """Classification of ImageNet.

    Attributes:
        augmentation: Augmentation of the training images.
        label_smoothing: Share of the target that is distributed over all classes.
    """

    experiment: ClassVar[str] = "imagenet"

    data: ImageNetData = field(default_factory=ImageNetData)
    model: ImageNetModel = field(default_factory=ResNet50Model)
    rule: Rule = IMAGE_RULE
    optimizer: Adam | SgdMomentum = field(default_factory=lambda: SgdMomentum(gate_lr=10.0))
    training: TrainingPlan = IMAGENET_TRAINING
    augmentation: Augmentation = field(default_factory=Augmentation)
    label_smoothing: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.label_smoothing < 1.0:
            raise ValueError(f"label_smoothing must be in [0, 1), got {self.label_smoothing}")


# As for the small classifiers (measurements in docs/images.md): a smooth start, an order that the training of the
# gate does not change, no damping. A smooth gate can also be interpolated to another grid (docs/imagenet.md). The
# paper's settings: --model.gate-init kaiming --model.order score --damping 0.1 --data.interpolation nearest
_GATE: dict[str, Any] = {"gate_init": "smooth", "order": "index"}

IMAGENET_RECIPES = {
    "imagenet/resnet50": ImageNetRecipe(model=ResNet50Model()),
    "imagenet/wide-resnet50": ImageNetRecipe(model=ResNet50Model(width_factor=2)),
    "imagenet/lrlcn": ImageNetRecipe(model=LowRankLocalResNet50Model()),
    "imagenet/smoe-first": ImageNetRecipe(model=AddedSpatialMoEResNet50Model(position="first", **_GATE)),
    "imagenet/smoe-last": ImageNetRecipe(model=AddedSpatialMoEResNet50Model(position="last", **_GATE)),
    "imagenet/smoe": ImageNetRecipe(model=SpatialMoEResNet50Model(**_GATE)),
}
