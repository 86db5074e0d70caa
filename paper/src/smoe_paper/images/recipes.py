"""Recipes of the classification of small images (paper appendix D). Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from smoe.rules import RoutingClassification, Rule
from smoe.training.plan import TrainingPlan
from smoe_paper.experiments.optimizers import Adam, SgdMomentum
from smoe_paper.experiments.recipe import Recipe
from smoe_paper.images.data.catalogue import ImageSetName
from smoe_paper.images.model_options import (
    ConvClassifierModel,
    CoordConvClassifierModel,
    ImageModel,
    LocalClassifierModel,
    LowRankLocalClassifierModel,
    SpatialMoEClassifierModel,
    WideClassifierModel,
)


@dataclass(frozen=True)
class ImageData:
    """Images of a published set.

    Attributes:
        name: Name of the image set.
        root: Folder of its files or a folder above it, such as the output of `smoe data fetch`; None in stored results.
        verify: Refuse files of the right format whose content differs from the published files.
        images_per_epoch: Number of training images drawn at random for each epoch; None uses all of them.
    """

    name: ImageSetName = "mnist"
    root: Path | None = Path("data")
    verify: bool = True
    images_per_epoch: int | None = None

    def __post_init__(self) -> None:
        if self.images_per_epoch is not None and self.images_per_epoch < 1:
            raise ValueError(f"images_per_epoch must be at least 1, or None for all, got {self.images_per_epoch}")


# The paper's set-up: Adam, a tenth of the learning rate after 15 epochs without improvement, the end after 30.
IMAGE_TRAINING = TrainingPlan(
    batch_size=512,
    evaluation_batch_size=500,
    max_epochs=150,
    monitor="accuracy",
    monitor_mode="max",
    plateau_patience=15,
    plateau_factor=0.1,
    early_stop_patience=30,
    stop_at=100.0,
)
IMAGE_OPTIMIZER = Adam(lr=1e-3)
# The rule of the SMoE; the other networks have no routing.
IMAGE_RULE = RoutingClassification(error_quantile=0.7)


@dataclass(frozen=True)
class ImageRecipe(Recipe):
    """Classification of small images.

    The tolerances of the rule are in units of the loss; see `smoe.ops._classification.choice_errors`.

    Attributes:
        label_smoothing: Share of the target that is distributed over all classes.
    """

    experiment: ClassVar[str] = "images"

    data: ImageData = field(default_factory=ImageData)
    model: ImageModel = field(default_factory=ConvClassifierModel)
    rule: Rule = field(default_factory=RoutingClassification.released)
    optimizer: Adam | SgdMomentum = IMAGE_OPTIMIZER
    training: TrainingPlan = IMAGE_TRAINING
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.label_smoothing < 1.0:
            raise ValueError(f"label_smoothing must be in [0, 1), got {self.label_smoothing}")


IMAGE_MODELS: dict[str, ImageModel] = {
    "conv": ConvClassifierModel(),
    "lcn": LocalClassifierModel(),
    "coordconv": CoordConvClassifierModel(),
    "wide": WideClassifierModel(),
    "lrlcn": LowRankLocalClassifierModel(),
    # By measurement (docs/images.md): fields of some pixels instead of white noise, so that a filter of the next layer
    # finds the same experts at neighbouring pixels; and an order that the training of the gate does not shuffle.
    "smoe": SpatialMoEClassifierModel(gate_init="smooth", correlation_length=7.0, order="index"),
}
_SETS: tuple[ImageSetName, ...] = ("mnist", "fashion-mnist", "cifar10")

IMAGE_RECIPES = {
    f"{set_name}/{model_name}": ImageRecipe(
        data=ImageData(name=set_name),
        model=model,
        rule=IMAGE_RULE if isinstance(model, SpatialMoEClassifierModel) else RoutingClassification.released(),
    )
    for set_name in _SETS
    for model_name, model in IMAGE_MODELS.items()
}
