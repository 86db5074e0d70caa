"""Tables of small images: the paper's two, Fashion-MNIST, and an additional one on routing. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

from smoe.options import Order
from smoe.rules import EndToEnd, Frozen, RoutingClassification, Rule, StraightThrough
from smoe_paper.experiments.experiment import Experiment
from smoe_paper.experiments.tables import ResultTable, Row, Scale, ShownMetric, TableSet
from smoe_paper.images.recipes import (
    IMAGE_RECIPES,
    IMAGE_SETS,
    IMAGE_TRAINING,
    PUBLISHED,
    ImageRecipe,
    SpatialMoEClassifierModel,
)

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
_DEFAULT_RULE = StraightThrough(temperature=1.0, share=0.25, noise=1.25, warm_up=100, patience=0)
_DEFAULTS = {
    "SMoE, defaults": _DEFAULT_MODEL,
    "SMoE, defaults and local affine": {**_DEFAULT_MODEL, "local_affine": True},
}

_UNDAMPED = RoutingClassification(error_quantile=0.7)
_DAMPED = RoutingClassification.paper()
_RELEASED = RoutingClassification.released()


def _models(set_name: str) -> ResultTable:
    name = f"images/{set_name}"
    rows: list[Row] = []
    for model_name, label in _LABELS.items():
        # Our settings of the SMoE stand beside the paper's number too.
        published = PUBLISHED.get(f"{set_name}/{'smoe-paper' if model_name == 'smoe' else model_name}")
        paper = () if published is None else (published,)
        rows.append(Row((label,), IMAGE_RECIPES[f"{set_name}/{model_name}"], paper))
    if set_name != "cifar10":
        recipe = IMAGE_RECIPES[f"{set_name}/smoe"]
        for label, options in _DEFAULTS.items():
            model = SpatialMoEClassifierModel(**options)
            rows.append(Row((label,), replace(recipe, model=model, rule=_DEFAULT_RULE)))
    title = IMAGE_SETS[set_name].title
    source = next((row.paper[0].source for row in rows if row.paper), "")
    return ResultTable(name, f"Classification of {title}", ("model",), tuple(rows), source)


_WIDE: dict[str, Any] = {"gate_init": "smooth", "correlation_length": 7.0}
# Start, rule and order, with the rule and the changes of the layers.
_ROUTING: dict[str, tuple[Rule, dict[str, Any]]] = {
    "white noise; frozen; score": (Frozen(), {"gate": "random"}),
    "white noise; q 0.7, no damping; score": (_UNDAMPED, {}),
    "white noise; q 0.7, damping 0.1; score": (_DAMPED, {}),
    "white noise; q 0.3, damping 0; score": (_RELEASED, {}),
    "white noise; frozen; index": (Frozen(), {"gate": "random"}),
    "smooth, 3.5 pixels; frozen; score": (Frozen(), {"gate": "random", "gate_init": "smooth"}),
    "smooth, 3.5 pixels; frozen; index": (Frozen(), {"gate": "random", "gate_init": "smooth"}),
    "smooth, 7 pixels; frozen; score": (Frozen(), {"gate": "random", **_WIDE}),
    "smooth, 7 pixels; frozen; index": (Frozen(), {"gate": "random", **_WIDE}),
    "smooth, 7 pixels; q 0.7, no damping; index": (_UNDAMPED, _WIDE),
    "smooth, 7 pixels; q 0.7, damping 0.1; index": (_DAMPED, _WIDE),
    "smooth, 7 pixels; q 0.3, damping 0; index": (_RELEASED, _WIDE),
    "smooth, 7 pixels; q 0.95, no damping; index": (RoutingClassification(error_quantile=0.95), _WIDE),
    "smooth, 7 pixels; end to end; index": (EndToEnd(), _WIDE),
}


def _routing() -> ResultTable:
    rows: list[Row] = []
    for label, (rule, changes) in _ROUTING.items():
        *_, order = labels = tuple(label.split("; "))
        model = SpatialMoEClassifierModel(order=cast("Order", order), **changes)
        rows.append(Row(labels, replace(IMAGE_RECIPES["mnist/smoe"], model=model, rule=rule)))
    columns = ("gate starts as", "routing learns by", "order")
    return ResultTable("images/routing", "How the gate of a classifier learns", columns, tuple(rows))


def _shorten(recipe: ImageRecipe, images_per_epoch: int) -> ImageRecipe:
    """One epoch of batches of 32: many small steps, because the images are few."""
    training = replace(IMAGE_TRAINING, batch_size=32, evaluation_batch_size=200, max_epochs=1)
    return replace(recipe, data=replace(recipe.data, images_per_epoch=images_per_epoch), training=training)


def _mini(recipe: ImageRecipe) -> ImageRecipe:
    """Networks small enough to train on the whole set; the best of five validations is tested."""
    shortened = _shorten(recipe, 12_000)
    return replace(
        shortened,
        model=replace(recipe.model, filters=16),
        optimizer=replace(recipe.optimizer, lr=2e-3, gate_lr=1e-3),
        training=replace(shortened.training, max_epochs=5),
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
    data_commands: ClassVar[Mapping[tuple[str, str], tuple[str, str]]] = {
        ("fetch", "mnist"): ("smoe_paper.images.fetch:run_mnist", "70,000 digits, 11.5 MB"),
        ("fetch", "fashion-mnist"): ("smoe_paper.images.fetch:run_fashion_mnist", "70,000 pieces of clothing, 31 MB"),
    }
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
                "small",
                "800 batches of 32 drawn from the whole training set, less than half an epoch, Adam 1e-3",
                partial(_shorten, images_per_epoch=25_600),
                kind="smaller",
            ),
            Scale(
                "trial",
                "300 batches of 32 in the same way",
                partial(_shorten, images_per_epoch=9_600),
                kind="smaller",
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
