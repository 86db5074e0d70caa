"""Classification of small images: the published sets, recipes with all their options, what the paper prints.

Scaling and splits are those of Elsayed et al. (2020), which the paper follows. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from smoe.options import Combiner
from smoe.rules import RoutingClassification, Rule
from smoe.training.plan import TrainingPlan
from smoe_paper.experiments.recipe import Adam, GateOptions, Recipe, SgdMomentum
from smoe_paper.experiments.tables import PublishedResult

ImageSetName = Literal["mnist", "fashion-mnist", "cifar10"]
Part = Literal["train", "test"]

CIFAR10_ARCHIVE = "cifar-10-binary.tar.gz"


@dataclass(frozen=True)
class ImageSet:
    """A published set of images.

    Attributes:
        title: Name of the set as its authors write it.
        image_shape: Channels, rows and columns of an image.
        classes: Names of the classes, in the order of the labels.
        num_images: Number of images in the published training and test files.
        value_range: Values that replace 0 and 255.
        validation_share: Share of the training images, from the first one, that is held back for validation.
        files: Names of the files of each part, in the order in which they are read.
        checksums: Checksum of the uncompressed content of each file: SHA-256, or the MD5 that the authors print.
        folders: Folders below a root in which tools store the files.
        remedy: How to get the files.
    """

    title: str
    image_shape: tuple[int, int, int]
    classes: tuple[str, ...]
    num_images: Mapping[str, int]
    value_range: tuple[float, float]
    validation_share: float
    files: Mapping[str, tuple[str, ...]]
    checksums: Mapping[str, str]
    folders: tuple[str, ...]
    remedy: str


_IDX_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_IDX_NUMBERS = {"train": 60_000, "test": 10_000}

IMAGE_SETS: Mapping[str, ImageSet] = {
    "mnist": ImageSet(
        title="MNIST",
        image_shape=(1, 28, 28),
        classes=tuple("0123456789"),
        num_images=_IDX_NUMBERS,
        value_range=(-1.0, 1.0),
        validation_share=0.08,
        files=_IDX_FILES,
        checksums={
            "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
        folders=("mnist", "MNIST/raw"),
        remedy="`smoe data fetch mnist` gets them",
    ),
    "fashion-mnist": ImageSet(
        title="Fashion-MNIST",
        image_shape=(1, 28, 28),
        classes=(
            "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
        ),
        num_images=_IDX_NUMBERS,
        value_range=(-1.0, 1.0),
        validation_share=0.08,
        files=_IDX_FILES,
        checksums={
            "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        },
        folders=("fashion-mnist", "FashionMNIST/raw"),
        remedy="`smoe data fetch fashion-mnist` gets them",
    ),
    "cifar10": ImageSet(
        title="CIFAR-10",
        image_shape=(3, 32, 32),
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        num_images={"train": 50_000, "test": 10_000},
        value_range=(0.0, 1.0),
        validation_share=0.1,
        files={
            "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
            "test": ("test_batch.bin",),
        },
        # Only the checksum of the archive is published: its files are recognised by their lengths and classes.
        checksums={CIFAR10_ARCHIVE: "c32a1d4ab5d03f1284b67883e8d87530"},
        folders=("cifar10", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"),
        remedy=f"bring the binary version of CIFAR-10, {CIFAR10_ARCHIVE}, unpacked or as it is",
    ),
}  # fmt: skip


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
        """The number of filters of each layer for images with some number of channels."""
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
        images_per_epoch: Number of training images drawn at random for each epoch; None uses all of them.
    """

    name: ImageSetName = "mnist"
    root: Path | None = Path("data")
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
    # The paper's text: white noise, the order of the scores, damping.
    "smoe-paper": SpatialMoEClassifierModel(),
}
_RULES: dict[str, Rule] = {"smoe": IMAGE_RULE, "smoe-paper": RoutingClassification.paper()}
_SETS: tuple[ImageSetName, ...] = ("mnist", "fashion-mnist", "cifar10")

IMAGE_RECIPES = {
    f"{set_name}/{model_name}": ImageRecipe(
        data=ImageData(name=set_name),
        model=model,
        rule=_RULES.get(model_name, RoutingClassification.released()),
    )
    for set_name in _SETS
    for model_name, model in IMAGE_MODELS.items()
}


def accuracy_result(mean: float, spread: float, source: str) -> PublishedResult:
    return PublishedResult("accuracy", mean, spread, None, source)


_PAPER = {
    ("mnist", "Table D.1"): {
        "conv": (98.86, 0.02),
        "lcn": (99.09, 0.02),
        "coordconv": (99.40, 0.03),
        "wide": (99.15, 0.01),
        "lrlcn": (99.49, 0.01),
        "smoe-paper": (99.54, 0.01),
    },
    ("cifar10", "Table D.2"): {
        "conv": (78.83, 0.07),
        "lcn": (72.03, 0.10),
        "coordconv": (80.98, 0.09),
        "wide": (82.43, 0.13),
        "lrlcn": (84.85, 0.08),
        "smoe-paper": (85.05, 0.07),
    },
}
PUBLISHED = {
    f"{set_name}/{model}": accuracy_result(*numbers, source)
    for (set_name, source), models in _PAPER.items()
    for model, numbers in models.items()
}
