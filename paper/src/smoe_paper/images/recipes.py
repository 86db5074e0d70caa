"""Classification of small images (paper appendix D): the sets, recipes with all their options, and tables.

Scaling and splits are those of Elsayed et al. (2020), which the paper follows. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

from smoe.options import Combiner, Order
from smoe.rules import Frozen, RoutingClassification, Rule, StraightThrough
from smoe.training.plan import TrainingPlan
from smoe_paper.experiments.experiment import Experiment
from smoe_paper.experiments.recipe import Adam, GateOptions, Recipe
from smoe_paper.experiments.tables import PublishedResult, ResultTable, Scale, ShownMetric, TableSet, make_table

ImageSetName = Literal["mnist", "fashion-mnist", "cifar10"]
Part = Literal["train", "test"]

CIFAR10_ARCHIVE = "cifar-10-binary.tar.gz"


@dataclass(frozen=True)
class ImageSet:
    """A published set of images."""

    title: str
    image_shape: tuple[int, int, int]  # channels, rows and columns
    classes: tuple[str, ...]  # in the order of the labels
    num_images: Mapping[str, int]  # in the published training and test files
    value_range: tuple[float, float]  # that replace 0 and 255
    validation_share: float  # of the training images, from the first one
    files: Mapping[str, tuple[str, ...]]  # of each part, in the order in which they are read
    checksums: Mapping[str, str]  # SHA-256 of the uncompressed content
    folders: tuple[str, ...]  # below a root, in which tools store the files
    remedy: str  # how to get the files


def _idx(title: str, classes: tuple[str, ...], folders: tuple[str, ...], *checksums: str) -> ImageSet:
    name = folders[0]
    files = {
        "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
        "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
    }
    return ImageSet(
        title,
        image_shape=(1, 28, 28),
        classes=classes,
        num_images={"train": 60_000, "test": 10_000},
        value_range=(-1.0, 1.0),
        validation_share=0.08,
        files=files,
        checksums=dict(zip((*files["train"], *files["test"]), checksums, strict=True)),
        folders=folders,
        remedy=f"`smoe data fetch {name}` gets them",
    )


IMAGE_SETS: Mapping[str, ImageSet] = {
    "mnist": _idx(
        "MNIST",
        tuple("0123456789"),
        ("mnist", "MNIST/raw"),
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    "fashion-mnist": _idx(
        "Fashion-MNIST",
        ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
        ("fashion-mnist", "FashionMNIST/raw"),
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
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
        checksums={
            "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        },
        folders=("cifar10", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"),
        remedy="`smoe data fetch cifar10` gets them",
    ),
}


@dataclass(frozen=True)
class _Size:
    """Common options: 3x3 layers that keep the grid, batch normalisation and ReLU, mean over pixels, linear layer."""

    filters: int = 64  # Number of filters of each layer.
    num_layers: int = 3  # Number of layers.

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
    """Three convolutions, the first with coordinates as additional inputs (CoordConv), as in Elsayed et al."""


@dataclass(frozen=True)
class WideClassifierModel(_Size):
    """Three convolutions with more filters."""

    # Rank of a low-rank local layer. The widths are those of Elsayed et al.: the network has as many parameters as one
    # with such a layer in place of the layer and a plain layer behind it. Grey images get 66, 160 and 256 filters.
    matched_rank: int = 4

    def widths(self, in_channels: int) -> tuple[int, ...]:
        rank, filters = self.matched_rank, self.filters
        inputs = (in_channels, *(filters,) * (self.num_layers - 1))
        inner = (int((rank * number + filters) / (number + filters) * filters) for number in inputs[:-1])
        return *inner, filters * rank


@dataclass(frozen=True)
class LowRankLocalClassifierModel(_Size):
    """Three low-rank locally connected layers (LRLCN)."""

    spatial_rank: int = 4  # Number of basis filters.
    # Network that computes each pixel's mixture; the first one is that of Elsayed et al.
    combiner: Combiner = "rows_and_columns"
    spatial_bias: bool = True  # Add a learned bias for each row and column, as Elsayed et al. do.


@dataclass(frozen=True)
class SpatialMoEClassifierModel(GateOptions, _Size):
    """Three SMoE layers that select 64 of 128 experts."""

    share_gates: bool = True  # Use one gate for all layers.

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
    """Images of a published set."""

    name: ImageSetName = "mnist"  # Name of the image set.
    # Folder of its files or a folder above it, such as the output of `smoe data fetch`; None in stored results.
    root: Path | None = Path("data")
    # Number of training images drawn at random for each epoch; None uses all of them.
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
    """

    experiment: ClassVar[str] = "images"

    data: ImageData = field(default_factory=ImageData)
    model: ImageModel = field(default_factory=ConvClassifierModel)
    rule: Rule = field(default_factory=RoutingClassification.released)
    optimizer: Adam = IMAGE_OPTIMIZER
    training: TrainingPlan = IMAGE_TRAINING


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


_LABELS = {
    "conv": "convolution",
    "coordconv": "CoordConv",
    "smoe": "SMoE",
    "smoe-paper": "SMoE, white noise, score order",
    "lcn": "LCN",
    "lrlcn": "LRLCN",
    "wide": "wide convolution",
}


# Networks with SMoE layers as `smoe.convert` makes them by default, written out, so that a stored run keeps its meaning
# when the default changes.
_DEFAULT_MODEL: dict[str, Any] = {
    "gate": "factorised",
    "gate_init": "kaiming",
    "order": "families",
    "bias": "expert",
}
_DEFAULT_RULE = StraightThrough(temperature=1.0, share=0.25, noise=1.25, warm_up=100)
_DEFAULTS = {
    "SMoE, defaults": _DEFAULT_MODEL,
    "SMoE, defaults and local affine": {**_DEFAULT_MODEL, "local_affine": True},
}

_UNDAMPED = RoutingClassification(error_quantile=0.7)
_DAMPED = RoutingClassification.paper()


def _models(set_name: str) -> ResultTable:
    rows: list[tuple[Any, ...]] = []
    for model_name, label in _LABELS.items():
        # Our settings of the SMoE stand beside the paper's number too.
        published = PUBLISHED.get(f"{set_name}/{'smoe-paper' if model_name == 'smoe' else model_name}")
        rows.append((label, IMAGE_RECIPES[f"{set_name}/{model_name}"], *([] if published is None else [published])))
    recipe = replace(IMAGE_RECIPES[f"{set_name}/smoe"], rule=_DEFAULT_RULE)
    models = {label: SpatialMoEClassifierModel(**options) for label, options in _DEFAULTS.items()}
    rows += [(label, replace(recipe, model=model)) for label, model in models.items()]
    source = {"mnist": "Table D.1", "cifar10": "Table D.2"}.get(set_name, "")
    return make_table(f"images/{set_name}", f"Classification of {IMAGE_SETS[set_name].title}", "model", rows, source)


_WIDE: dict[str, Any] = {"gate_init": "smooth", "correlation_length": 7.0}
# Start, rule and order, with the rule and the changes of the layers.
_ROUTING: dict[str, tuple[Rule, dict[str, Any]]] = {
    "white noise; frozen; score": (Frozen(), {"gate": "random"}),
    "white noise; q 0.7, no damping; score": (_UNDAMPED, {}),
    "white noise; q 0.7, damping 0.1; score": (_DAMPED, {}),
    "smooth, 7 pixels; q 0.7, no damping; index": (_UNDAMPED, _WIDE),
}


def _routing() -> ResultTable:
    rows: list[tuple[Any, ...]] = []
    for labels, (rule, changes) in _ROUTING.items():
        model = SpatialMoEClassifierModel(order=cast("Order", labels.rpartition("; ")[2]), **changes)
        rows.append((labels, replace(IMAGE_RECIPES["mnist/smoe"], model=model, rule=rule)))
    columns = "gate starts as; routing learns by; order"
    return make_table("images/routing", "How the gate of a classifier learns", columns, rows)


def _mini(recipe: ImageRecipe) -> ImageRecipe:
    """Networks small enough to train on the whole set; the best of five validations is tested."""
    return replace(
        recipe,
        data=replace(recipe.data, images_per_epoch=12_000),
        model=replace(recipe.model, filters=16),
        optimizer=replace(recipe.optimizer, lr=2e-3, gate_lr=1e-3),
        # Many small steps, because the images are few.
        training=replace(IMAGE_TRAINING, batch_size=32, evaluation_batch_size=200, max_epochs=5),
    )


class ImageExperiment(Experiment):
    """Classification of MNIST, Fashion-MNIST and CIFAR-10 (paper appendix D)."""

    name = "images"
    recipe_type = ImageRecipe
    recipes = IMAGE_RECIPES
    published_results = PUBLISHED
    builds_without_data = True
    # The folder that `smoe data fetch` writes.
    data_folder = Path("data")
    tables = TableSet(
        name="images",
        metrics=(ShownMetric("accuracy", decimals=2, is_percentage=True),),
        metric_text="Accuracy on the test images in percent: mean ± standard deviation over the seeds.",
        tables=(_models("mnist"), _models("fashion-mnist"), _models("cifar10"), _routing()),
        scales=(
            Scale(
                "paper",
                "batches of 512, Adam 1e-3, a tenth of it after 15 epochs without improvement, the end after 30",
            ),
            Scale(
                "mini",
                "nets of 16 filters, 1,875 batches of 32 drawn from the whole training set, Adam 2e-3 (gates 1e-3)",
                _mini,
                kind="smaller",
            ),
        ),
        data_field="root",
    )


IMAGES = ImageExperiment()
