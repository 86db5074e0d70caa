"""Recipes that classify small images with all their options, and what the paper prints. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from smoe.options import Combiner
from smoe.rules import RoutingClassification, Rule
from smoe.training.plan import TrainingPlan
from smoe_paper.experiments.recipe import Adam, GateOptions, Recipe, SgdMomentum
from smoe_paper.experiments.tables import PublishedResult
from smoe_paper.images.data.catalogue import ImageSetName


@dataclass(frozen=True)
class _Size:
    """Common options: 3x3 layers that keep the grid, batch normalisation and ReLU, mean over pixels, linear layer.

    Attributes:
        filters: Number of filters of each layer.
        num_layers: Number of layers.
    """

    filters: int = 64
    num_layers: int = 3

    def __post_init__(self) -> None:
        for name in ("filters", "num_layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True)
class ConvClassifierModel(_Size):
    """Three convolutions."""


@dataclass(frozen=True)
class LocalClassifierModel(_Size):
    """Two convolutions and a locally connected layer (LCN)."""


@dataclass(frozen=True)
class CoordConvClassifierModel(_Size):
    """Three convolutions with coordinates as additional inputs (CoordConv).

    Attributes:
        coordinates: `image` appends the coordinates once, to the image, as Elsayed et al. do, whose set-up the paper
            follows; `all` appends them to the input of every layer, as in the paper's heat network.
    """

    coordinates: Literal["image", "all"] = "image"


@dataclass(frozen=True)
class WideClassifierModel(_Size):
    """Three convolutions with more filters.

    Attributes:
        matched_rank: Rank of a low-rank local layer. The widths are those of Elsayed et al.: the network has as many
            parameters as one with such a layer in place of the layer and a plain layer behind it. Grey images get
            66, 160 and 256 filters.
    """

    matched_rank: int = 4

    def widths(self, in_channels: int) -> tuple[int, ...]:
        """Returns the number of filters of each layer for images with some number of channels."""
        rank, filters = self.matched_rank, self.filters
        inputs = (in_channels, *(filters,) * (self.num_layers - 1))
        inner = (int((rank * number + filters) / (number + filters) * filters) for number in inputs[:-1])
        return *inner, filters * rank


@dataclass(frozen=True)
class LowRankLocalClassifierModel(_Size):
    """Three low-rank locally connected layers (LRLCN).

    Attributes:
        spatial_rank: Number of basis filters.
        combiner: Network that computes each pixel's mixture; the first one is that of Elsayed et al.
        spatial_bias: Add a learned bias for each row and column, as Elsayed et al. do.
    """

    spatial_rank: int = 4
    combiner: Combiner = "rows_and_columns"
    spatial_bias: bool = True


@dataclass(frozen=True)
class SpatialMoEClassifierModel(GateOptions, _Size):
    """Three SMoE layers that select 64 of 128 experts.

    Attributes:
        share_gates: Use one gate for all layers.
    """

    share_gates: bool = True

    def __post_init__(self) -> None:
        GateOptions.__post_init__(self)
        _Size.__post_init__(self)


ImageModel = (
    ConvClassifierModel
    | LocalClassifierModel
    | CoordConvClassifierModel
    | WideClassifierModel
    | LowRankLocalClassifierModel
    | SpatialMoEClassifierModel
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


def accuracy_result(mean: float, spread: float, source: str) -> PublishedResult:
    """Returns a published accuracy in percent."""
    return PublishedResult("accuracy", mean, spread, None, source)


_MNIST, _CIFAR10 = "Table D.1", "Table D.2"

PUBLISHED = {
    "mnist/conv": accuracy_result(98.86, 0.02, _MNIST),
    "mnist/lcn": accuracy_result(99.09, 0.02, _MNIST),
    "mnist/coordconv": accuracy_result(99.40, 0.03, _MNIST),
    "mnist/wide": accuracy_result(99.15, 0.01, _MNIST),
    "mnist/lrlcn": accuracy_result(99.49, 0.01, _MNIST),
    "mnist/smoe": accuracy_result(99.54, 0.01, _MNIST),
    "cifar10/conv": accuracy_result(78.83, 0.07, _CIFAR10),
    "cifar10/lcn": accuracy_result(72.03, 0.10, _CIFAR10),
    "cifar10/coordconv": accuracy_result(80.98, 0.09, _CIFAR10),
    "cifar10/wide": accuracy_result(82.43, 0.13, _CIFAR10),
    "cifar10/lrlcn": accuracy_result(84.85, 0.08, _CIFAR10),
    "cifar10/smoe": accuracy_result(85.05, 0.07, _CIFAR10),
}
