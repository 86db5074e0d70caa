"""ImageNet: recipes with all their options, and the table (paper section 3.4). Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from smoe.options import Combiner
from smoe.rules import RoutingClassification, Rule
from smoe.training.plan import TrainingPlan
from smoe_paper.experiments.experiment import Experiment
from smoe_paper.experiments.recipe import Adam, GateOptions, Recipe, SgdMomentum
from smoe_paper.experiments.tables import PublishedResult, ResultTable, Scale, ShownMetric, TableSet, make_table
from smoe_paper.images.recipes import IMAGE_RULE, accuracy_result


@dataclass(frozen=True)
class _Size:
    """Common options of all variants."""

    num_blocks: tuple[int, int, int, int] = (3, 4, 6, 3)  # Number of blocks in each of the four stages.
    filters: int = 64  # Number of filters of the first convolution; each stage has twice as many as the stage before.


@dataclass(frozen=True)
class ResNet50Model(_Size):
    """ResNet-50, or Wide ResNet-50-2."""

    width_factor: int = 1  # Factor of the filters of the 3x3 convolutions; 2 is Wide ResNet-50-2.


@dataclass(frozen=True)
class LowRankLocalResNet50Model(_Size):
    """ResNet-50 with its 3x3 convolutions as low-rank locally connected layers (LRLCN)."""

    # Number of basis filters. The paper only states that its SMoE has 56 % of the LRLCN's parameters. With 5 it has
    # 53 %, or 56 % if each layer had its own gate at 224 pixels; with 4 it has 63 %.
    spatial_rank: int = 5
    combiner: Combiner = "input"  # Network that computes each pixel's mixture of the basis filters.


@dataclass(frozen=True)
class AddedSpatialMoEResNet50Model(GateOptions, _Size):
    """ResNet-50 with one SMoE layer of 3x3 experts added, with batch normalisation and ReLU."""

    # `first` is after the 7x7 convolution. `last` is after the last residual block, as the paper's text says, with 2048
    # input and output channels and 75 million more parameters.
    position: Literal["first", "last"] = "first"


@dataclass(frozen=True)
class SpatialMoEResNet50Model(GateOptions, _Size):
    """ResNet-50 with its 3x3 convolutions as SMoE layers."""

    share_gates: bool = True  # Use one gate for all layers of a stage.


ImageNetModel = ResNet50Model | LowRankLocalResNet50Model | AddedSpatialMoEResNet50Model | SpatialMoEResNet50Model


@dataclass(frozen=True)
class ImageNetData:
    """Images in `root/train/<class>/*.JPEG` and `root/val/<class>/*.JPEG`, with any number of classes.

    Some training images are held back to choose the best epoch, so that `val` does not influence the result.
    `--data.held-out-per-class 0` is torchvision's way: all training images, and `val` for validation and test.
    """

    root: Path | None = None  # Folder of `train` and `val`.
    train_size: int = 176  # Rows and columns of training crops.
    resize: int = 232  # Length of the shorter side in evaluation, before the centre is cut out.
    crop: int = 224  # Rows and columns of the centre. Gates and tables are taken to its grids.
    held_out_per_class: int = 10  # Number of training images of each class that are held back to choose the best epoch.

    def __post_init__(self) -> None:
        for name in ("train_size", "crop"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.resize < self.crop:
            raise ValueError(f"resize must be at least crop, {self.crop}, got {self.resize}")
        if self.held_out_per_class < 0:
            raise ValueError(f"held_out_per_class must not be negative, got {self.held_out_per_class}")


# A cosine after a warm-up; the patience never ends.
_COSINE = TrainingPlan(monitor="accuracy", monitor_mode="max", schedule="cosine", early_stop_patience=600)
IMAGENET_TRAINING = replace(
    _COSINE,
    # The paper's 64 processes of 128. With fewer, a smaller batch and learning rate fit.
    batch_size=8192,
    evaluation_batch_size=128,
    max_epochs=600,
    warmup_epochs=5,
    num_workers=4,
)


@dataclass(frozen=True)
class ImageNetRecipe(Recipe):
    """Classification of ImageNet."""

    experiment: ClassVar[str] = "imagenet"

    data: ImageNetData = field(default_factory=ImageNetData)
    model: ImageNetModel = field(default_factory=ResNet50Model)
    rule: Rule = IMAGE_RULE
    optimizer: Adam | SgdMomentum = field(default_factory=lambda: SgdMomentum(gate_lr=10.0))
    training: TrainingPlan = IMAGENET_TRAINING


# As for the small classifiers (measurements in docs/images.md): a smooth start, an order that the training of the
# gate does not change, no damping. A smooth gate also loses less on another grid (docs/imagenet.md). The paper's
# settings: --model.gate-init kaiming --model.order score --damping 0.1
_GATE: dict[str, Any] = {"gate_init": "smooth", "order": "index"}

IMAGENET_RECIPES = {
    "imagenet/resnet50": ImageNetRecipe(model=ResNet50Model()),
    "imagenet/wide-resnet50": ImageNetRecipe(model=ResNet50Model(width_factor=2)),
    "imagenet/lrlcn": ImageNetRecipe(model=LowRankLocalResNet50Model()),
    "imagenet/smoe-first": ImageNetRecipe(model=AddedSpatialMoEResNet50Model(position="first", **_GATE)),
    "imagenet/smoe-last": ImageNetRecipe(model=AddedSpatialMoEResNet50Model(position="last", **_GATE)),
    "imagenet/smoe": ImageNetRecipe(model=SpatialMoEResNet50Model(**_GATE)),
    # The paper's text: white noise, the order of the scores, damping.
    "imagenet/smoe-paper": ImageNetRecipe(
        model=SpatialMoEResNet50Model(),
        rule=RoutingClassification.paper(),
    ),
}


# In the paper's order: label, top-1 and top-5 accuracy, each with its standard deviation.
_ROWS = {
    "resnet50": ("ResNet-50", 80.83, 0.04, 95.39, 0.03),
    "lrlcn": ("LRLCN", 80.90, 0.02, 95.41, 0.05),
    "smoe-first": ("SMoE after the first layer", 80.85, 0.05, 95.40, 0.01),
    "smoe-last": ("SMoE after the last layer", 80.91, 0.04, 95.42, 0.03),
    "smoe": ("SMoE, all 3 x 3", 81.33, 0.03, 95.52, 0.01),
    "wide-resnet50": ("Wide ResNet-50-2", 81.76, 0.03, 95.74, 0.02),
}
_SOURCE = "Table 4"


def _models() -> ResultTable:
    paper = {
        name: (accuracy_result(*row[1:3], _SOURCE), PublishedResult("top5_accuracy", *row[3:], None, _SOURCE))
        for name, row in _ROWS.items()
    }
    rows = [(row[0], IMAGENET_RECIPES[f"imagenet/{name}"], *paper[name]) for name, row in _ROWS.items()]
    as_written = ("SMoE, all 3 x 3, white noise, score order", IMAGENET_RECIPES["imagenet/smoe-paper"], *paper["smoe"])
    text = (
        "ImageNet has to be provided by the user (docs/imagenet.md). The SMoE rows start smooth, in the order of the "
        "experts' numbers and without damping (docs/images.md); the last row is the paper's text. Unlike the "
        "paper's, the training repeats no augmentation and averages no weights."
    )
    title = "Classification of ImageNet"
    return make_table("imagenet/models", title, "model", [*rows, as_written], _SOURCE, text=text)


def _small(recipe: ImageNetRecipe) -> ImageNetRecipe:
    """For a few classes in the same layout, on a machine without an accelerator."""
    return replace(
        recipe,
        data=replace(recipe.data, train_size=64, resize=84, crop=80, held_out_per_class=2),
        model=replace(recipe.model, filters=16),
        optimizer=replace(recipe.optimizer, lr=0.05, gate_lr=5.0),
        training=replace(_COSINE, max_epochs=10, warmup_epochs=1, early_stop_patience=10),
    )


class ImageNetExperiment(Experiment):
    """Classification of class folders of images, which the user provides (paper section 3.4)."""

    name = "imagenet"
    recipe_type = ImageNetRecipe
    recipes = IMAGENET_RECIPES
    data_remedy = "a folder with train/<class>/*.JPEG and val/<class>/*.JPEG"
    tables = TableSet(
        name="imagenet",
        num_seeds=3,
        metrics=(
            ShownMetric("accuracy", "top-1", decimals=2, is_percentage=True),
            ShownMetric("top5_accuracy", "top-5", decimals=2, is_percentage=True),
        ),
        metric_text="Accuracy on the validation images in percent: mean ± standard deviation over the seeds.",
        tables=(_models(),),
        scales=(
            Scale("paper", "600 epochs of batches of 8192"),
            Scale(
                "small",
                "nets of 16 filters on crops of 64 pixels, ten epochs of batches of 32, of whatever classes there are",
                _small,
                kind="smaller",
            ),
        ),
        data_field="root",
    )


IMAGENET = ImageNetExperiment()
