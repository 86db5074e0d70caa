"""Recipes of the classification of small images (paper appendix D). Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from smoe.experiments.optimizers import AdamL2
from smoe.options import RoutingTraining
from smoe.paper.images.data.catalogue import ImageSetName
from smoe.paper.images.models import (
    ConvClassifierModel,
    CoordConvClassifierModel,
    ImageModel,
    LocalClassifierModel,
    LowRankLocalClassifierModel,
    SpatialMoEClassifierModel,
    WideClassifierModel,
)
from smoe.training.plan import TrainingPlan


@dataclass(frozen=True)
class ImageData:
    """The images.

    Attributes:
        name: of the set.
        root: folder of its files, or one above it, such as that of all `smoe data fetch` got.
        verify: refuse files of the right format that are not the published ones.
        images_per_epoch: an epoch is so many of the training images, drawn anew each time; None for all of them.
    """

    name: ImageSetName = "mnist"
    root: Path = Path("data")
    verify: bool = True
    images_per_epoch: int | None = None

    def __post_init__(self) -> None:
        if self.images_per_epoch is not None and self.images_per_epoch < 1:
            raise ValueError(f"images_per_epoch must be at least 1, or None for all, got {self.images_per_epoch}")


# The paper's standard set-up: Adam, a tenth of the learning rate after 15 epochs without improvement, the end after 30.
IMAGE_TRAINING = TrainingPlan(batch_size=512, evaluation_batch_size=500, monitor="accuracy")
IMAGE_OPTIMIZER = AdamL2(lr=1e-3, l2=0.0)
# Of the SMoE; the other networks have no routing.
IMAGE_ROUTING = RoutingTraining(error_quantile=0.7, damping=None)


@dataclass(frozen=True)
class ImageRecipe:
    """Classification of small images.

    Attributes:
        data: what is classified.
        model: the network.
        routing: how the routing of SMoE layers learns. The tolerances are in units of the loss here; see
            `smoe.ops.routing_error.choice_errors`.
        routing_warmup_epochs: epochs before it begins to; the gates stay as they start, and no error is damped.
        optimizer: of all parameters.
        training: batches, schedule and stopping.
        label_smoothing: share of the target that is spread over all classes.
        seed: of the initial weights and of the shuffles.
    """

    data: ImageData = field(default_factory=ImageData)
    model: ImageModel = field(default_factory=ConvClassifierModel)
    routing: RoutingTraining = field(default_factory=RoutingTraining)
    routing_warmup_epochs: int = 0
    optimizer: AdamL2 = IMAGE_OPTIMIZER
    training: TrainingPlan = IMAGE_TRAINING
    label_smoothing: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.routing_warmup_epochs < 0:
            raise ValueError(f"routing_warmup_epochs must not be negative, got {self.routing_warmup_epochs}")
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
        routing=IMAGE_ROUTING if isinstance(model, SpatialMoEClassifierModel) else RoutingTraining(),
    )
    for set_name in _SETS
    for model_name, model in IMAGE_MODELS.items()
}
