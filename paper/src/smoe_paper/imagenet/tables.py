"""The paper's table of ImageNet (section 3.4). Imports no torch."""

from __future__ import annotations

from dataclasses import replace

from smoe.rules import RoutingClassification
from smoe.training.plan import TrainingPlan
from smoe_paper.experiments.tables import PublishedResult, ResultTable, Row, Scale, ShownMetric, TableSet
from smoe_paper.imagenet.recipes import IMAGENET_RECIPES, PUBLISHED, ImageNetRecipe, SpatialMoEResNet50Model

# In the paper's order, with its top-5 accuracies.
_ROWS = {
    "resnet50": ("ResNet-50", 95.39, 0.03),
    "lrlcn": ("LRLCN", 95.41, 0.05),
    "smoe-first": ("SMoE after the first layer", 95.40, 0.01),
    "smoe-last": ("SMoE after the last layer", 95.42, 0.03),
    "smoe": ("SMoE, all 3 x 3", 95.52, 0.01),
    "wide-resnet50": ("Wide ResNet-50-2", 95.74, 0.02),
}
_TEXT = (
    "ImageNet has to be provided by the user (docs/imagenet.md). The SMoE rows start smooth, in the order of the "
    "experts' numbers and without damping (docs/images.md); the last row is the paper's text."
)


def _models() -> ResultTable:
    rows: list[Row] = []
    for name, (label, top5, spread) in _ROWS.items():
        top1 = PUBLISHED[f"imagenet/{name}"]
        paper = (top1, PublishedResult("top5_accuracy", top5, spread, None, top1.source))
        rows.append(Row((label,), IMAGENET_RECIPES[f"imagenet/{name}"], paper))
    recipe = IMAGENET_RECIPES["imagenet/smoe"]
    as_written = replace(
        recipe,
        model=SpatialMoEResNet50Model(),
        rule=RoutingClassification.paper(),
        data=replace(recipe.data, interpolation="nearest"),
    )
    paper = next(row.paper for row in rows if row.recipe is recipe)
    rows.append(Row(("SMoE, all 3 x 3, white noise, score order",), as_written, paper))
    source = rows[0].paper[0].source
    return ResultTable("imagenet/models", "Classification of ImageNet", ("model",), tuple(rows), source, _TEXT)


def _same(recipe: ImageNetRecipe) -> ImageNetRecipe:
    return recipe


def _small(recipe: ImageNetRecipe) -> ImageNetRecipe:
    """For a few classes in the same layout, on a machine without an accelerator."""
    return replace(
        recipe,
        data=replace(recipe.data, train_size=64, resize=84, crop=80, held_out_per_class=2),
        model=replace(recipe.model, filters=16),
        optimizer=replace(recipe.optimizer, lr=0.05, gate_lr=5.0),
        training=TrainingPlan(
            batch_size=32,
            evaluation_batch_size=100,
            max_epochs=10,
            monitor="accuracy",
            monitor_mode="max",
            schedule="cosine",
            warmup_epochs=1,
            warmup_start=0.01,
            early_stop_patience=10,
            stop_at=None,
        ),
    )


IMAGENET_TABLES = TableSet(
    name="imagenet",
    metrics=(
        ShownMetric("accuracy", "top-1", decimals=2, is_percentage=True),
        ShownMetric("top5_accuracy", "top-5", decimals=2, is_percentage=True),
    ),
    metric_text="Accuracy on the validation images in percent: mean ± standard deviation over the seeds.",
    tables=(_models(),),
    scales=(
        Scale("paper", "600 epochs of batches of 8192", _same),
        Scale(
            "small",
            "nets of 16 filters on crops of 64 pixels, ten epochs of batches of 32, of whatever classes there are",
            _small,
            is_comparable=False,
        ),
    ),
    data_field="root",
)
