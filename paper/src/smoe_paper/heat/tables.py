"""The paper's tables of heat diffusion, and our own: rows of labels, changes of a recipe, and the paper's numbers.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

from smoe.rules import Damping, EndToEnd, RoutingClassification, StraightThrough
from smoe_paper.experiments.experiment import Experiment
from smoe_paper.experiments.recipe import Adam, AuxiliaryLosses
from smoe_paper.experiments.tables import PublishedResult, ResultTable, Scale, ShownMetric, TableSet, make_table
from smoe_paper.heat.recipes import (
    HEAT_RECIPES,
    PUBLISHED,
    ConvNetModel,
    HeatDiffusion,
    HeatRecipe,
    SpatialMoEModel,
    heat_result,
)

SMOE = HEAT_RECIPES["heat/smoe"]
RELEASED = RoutingClassification.released()
_UNDAMPED = replace(RELEASED, damping=None)
# Fields of a recipe; any other change is one of its SMoE layer.
_OF_RECIPE = {"rule", "damping", "auxiliary", "optimizer", "data", "loss"}


def _recipe(changes: dict[str, Any] | HeatRecipe) -> HeatRecipe:
    if isinstance(changes, HeatRecipe):
        return changes
    model = {name: value for name, value in changes.items() if name not in _OF_RECIPE}
    fields = {name: value for name, value in changes.items() if name in _OF_RECIPE}
    return HeatRecipe(model=SpatialMoEModel(**model), **fields)


def _published(first: float | PublishedResult, *others: Any) -> PublishedResult:
    return first if isinstance(first, PublishedResult) else heat_result(first, *others)


def _table(name: str, source: str, title: str, columns: str, rows: Iterable[tuple[Any, ...]]) -> ResultTable:
    made = ((labels, _recipe(changes), *([_published(*paper)] if paper else [])) for labels, changes, *paper in rows)
    return make_table(f"heat/{name}", title, columns, made, source, picture=_PICTURES.get(name, ("", "")))


_PICTURES = {
    "main": ("routing.png", "Figure 3, centre and right: regions and stencils, and what a run of seed 0 learned"),
    "starts": ("starts.png", "Footnote of Table B.1: accuracy by epoch of the rows of the table, first seed"),
}
_END_TO_END = {"rule": EndToEnd()}
_MODELS = {
    "conv": "Convolution",
    "coordconv": "CoordConv",
    "condconv": "CondConv",
    "lrlcn": "LRLCN",
    "lrlcn-nd": "LRLCN-ND",
    "lcn": "LCN",
    "fc": "FC",
    "vit": "ViT",
    "vmoe": "V-MoE",
    "smoe": "SMoE",
}

_CONVOLUTIONS = ("conv", "coordconv", "condconv")

# Importance, load, spatial agreement, noise; the paper's result with the RC loss and damping, and without.
_AUXILIARY = (
    ("no; no; no; no", (100.0, 0.0), (91.5, 0.4)),
    ("yes; no; no; no", (100.0, 0.0), (90.8, 0.6)),
    ("yes; no; no; yes", (95.7, 0.2), (74.0, 0.2)),
    ("yes; yes; no; yes", (95.7, 0.3), (73.9, 0.5)),
    ("no; yes; no; yes", (95.7, 0.2), (74.2, 0.3)),
    ("no; no; no; yes", (95.7, 0.4), (73.9, 0.5)),
    ("yes; no; yes; no", (100.0, 0.0), (91.3, 0.2)),
    ("yes; no; yes; yes", (95.6, 0.5), (74.1, 0.2)),
    ("yes; yes; yes; yes", (95.7, 0.3), (73.7, 0.3)),
    ("no; yes; yes; yes", (95.7, 0.1), (74.0, 0.4)),
    ("no; no; yes; yes", (95.7, 0.2), (73.9, 0.3)),
)


def _auxiliary(labels: str) -> dict[str, Any]:
    importance, load, agreement, noise = (word == "yes" for word in labels.split("; "))
    return {"auxiliary": AuxiliaryLosses(importance, load, agreement), "gate_noise": noise}


QUANTILES = (0.3, 0.5, 0.7)
DAMPINGS: tuple[float | None, ...] = (0.0, 0.1, None)


def grid_recipe(error_quantile: float, damping: float | None) -> HeatRecipe:
    damped = None if damping is None else Damping(factor=damping, error_quantile=error_quantile)
    return _recipe({"rule": RoutingClassification(error_quantile=error_quantile, damping=damped)})


# The root mean square of the data is 0.054: the first pair in units of the output is about equal to that of the data.
_TOLERANCES = {
    "data": (
        *((1e-5, 1e-3), (0.0, 0.0), (1e-5, 1e-5), (1e-4, 1e-4), (1e-3, 1e-3)),
        *((0.0, 1e-3), (1e-6, 1e-3), (1e-5, 1e-2)),
    ),
    "output": ((2e-4, 2e-2), (1e-4, 1e-2), (1e-3, 2e-2), (1e-2, 1e-2)),
}


def _with_tolerances(tolerance: float, damping_tolerance: float, unit: Any) -> dict[str, Any]:
    damping = Damping(factor=0.0, error_quantile=0.3, tolerance=damping_tolerance, tolerance_unit=unit)
    return {"rule": replace(RELEASED, tolerance=tolerance, tolerance_unit=unit, damping=damping)}


# As the library makes a layer, but without local affine maps, so that the experts have to be found.
_DEFAULT: dict[str, Any] = {
    "bias": "expert",
    "gate": "factorised",
    "gate_init": "uniform",
    "order": "families",
    "rule": StraightThrough(),
}
RULES: dict[str, dict[str, Any]] = {
    "RC, released settings": {"rule": RELEASED},
    "RC, the paper's text": {"rule": RoutingClassification.paper()},
    "default": _DEFAULT,
    "end to end": _END_TO_END,
}
_OTHER_SIZES: dict[str, dict[str, Any]] = {
    "six": {"num_experts": 6},
    "three of 5 x 5": {"kernel_size": 5},
    "two of six, summed": {"num_experts": 6, "num_selected": 2},
}
UNITS = (1e-3, 1.0, 1e3)


def _in_unit(unit: float) -> dict[str, Any]:
    # An eps far below the gradients of the smallest unit, so that only the rule differs.
    return {"data": HeatDiffusion(unit=unit), "optimizer": Adam(eps=1e-15)}


_SIZES: tuple[tuple[Literal["conv", "coordconv", "condconv"], tuple[int, ...], bool], ...] = (
    *(("conv", hidden, False) for hidden in ((), (8,), (12,), (12, 12))),
    ("conv", (12, 12), True),
    *((layer, hidden, False) for layer in ("coordconv", "condconv") for hidden in ((), (12,))),
)
_LOSS_MODELS: dict[str, HeatRecipe] = {
    "one 3 x 3 convolution": HeatRecipe(model=ConvNetModel("conv", hidden=())),
    "Convolution": HEAT_RECIPES["heat/conv-plain"],
    "CoordConv": HEAT_RECIPES["heat/coordconv-plain"],
    "SMoE, no RC loss, no damping": _recipe(_END_TO_END),
    "SMoE, RC loss and damping": _recipe(RULES["RC, released settings"]),
}

# Name, place in the paper, title and columns of each table; its rows are labels, changes, and the paper's mean,
# standard deviation and epochs, if it has any.
_TABLES: dict[tuple[str, str, str, str], Iterable[tuple[Any, ...]]] = {
    ("main", "Figure 3, left", "Heat diffusion: all models", "model"): [
        *((label, HEAT_RECIPES[f"heat/{name}"], PUBLISHED[f"heat/{name}"]) for name, label in _MODELS.items()),
        *((f"{_MODELS[name]}, not residual", HEAT_RECIPES[f"heat/{name}-plain"]) for name in _CONVOLUTIONS),
    ],
    ("training", "Table 1", "RC loss and expert error damping", "RC loss; damping"): [
        ("no; no", _END_TO_END, 91.5, 0.4, 14),
        ("no; yes", {"rule": EndToEnd(), "damping": RELEASED.damping}, 91.6, 0.2, 16),
        ("yes; no", {"rule": _UNDAMPED}, 96.7, 0.4, 15),
        ("yes; yes", {"rule": RELEASED}, 100.0, 0.0, 8),
    ],
    ("gates", "Table 2", "Gate functions", "gate"): [
        ("Fully-connected", {"gate": "linear"}, 85.2, 5.7, None, "50M"),
        ("3 x 3 convolution", {"gate": "conv"}, 91.3, 0.3, None, "27"),
        ("3 x 3 CoordConv", {"gate": "coordconv"}, 91.5, 0.4, None, "81"),
        ("3 x 3 LCN", {"gate": "lcn"}, 96.3, 1.2, None, "110592"),
        ("3 x 3 CoordConv x 3", {"gate": "coordconv3"}, 91.6, 0.2, None, "255"),
        ("Tensor routing", SMOE, 100.0, 0.0, None, "12288"),
    ],
    ("configurations", "section 3.1", "When the right configuration is not known", "configuration"): [
        ("six experts", {"num_experts": 6}, 100.0),
        ("5 x 5 experts", {"kernel_size": 5}, 100.0),
        ("two of six experts, summed", {"num_experts": 6, "num_selected": 2}, 100.0),
    ],
    (
        "starts",
        "Table B.1",
        "Starting at the truth, without RC loss and damping",
        "gate starts; frozen; experts start; frozen",
    ): [
        ("random; no; random; no", _END_TO_END, 91.5, 0.4),
        ("random; no; perfect; no", {**_END_TO_END, "experts_start": "true"}, 91.4, 0.4),
        ("random; no; perfect; yes", {**_END_TO_END, "experts_start": "true", "experts_frozen": True}, 80.9, 0.2),
        ("perfect; no; random; no", {**_END_TO_END, "gate_start": "true"}, 96.0, 0.3),
        ("perfect; yes; random; no", {**_END_TO_END, "gate": "fixed"}, 100.0),
        ("perfect; no; perfect; no", {**_END_TO_END, "gate_start": "true", "experts_start": "true"}, 100.0),
    ],
    ("normalisation", "Table C.1", "Normalisation of the scores", "normalisation"): [
        ("softmax", {"normalisation": "softmax"}, 100.0),
        ("absolute value", {"normalisation": "abs"}, 90.2, 0.3),
        ("softmax and absolute value", {"normalisation": "abs_softmax"}, 100.0),
        ("none", SMOE, 100.0),
    ],
    (
        "auxiliary",
        "Table C.2",
        "Auxiliary losses and noise, with RC loss and damping",
        "importance; load; spatial agreement; noise",
    ): [(labels, _auxiliary(labels), *with_rc) for labels, with_rc, _ in _AUXILIARY],
    (
        "auxiliary-end-to-end",
        "Table C.3",
        "Auxiliary losses and noise, without RC loss and damping",
        "importance; load; spatial agreement; noise",
    ): [(labels, {**_END_TO_END, **_auxiliary(labels)}, *without_rc) for labels, _, without_rc in _AUXILIARY],
    ("auxiliary-weight", "", "Factor of the importance loss, with RC loss and damping", "factor"): [
        (f"{weight:g}", {"auxiliary": AuxiliaryLosses(importance=True, weight=weight)})
        for weight in (1e-3, 0.01, 0.1, 1.0)
    ],
    ("gate-auxiliary", "", "Gates that look at their input, with auxiliary losses", "gate; losses"): [
        (f"{gate}; importance", {"gate": gate, "auxiliary": AuxiliaryLosses(importance=True)})
        for gate in ("conv", "coordconv", "lcn", "coordconv3")
    ],
    # Cells of the paper's search over up to three layers of up to twelve filters.
    ("sizes", "", "Sizes of the networks without a sense of place", "layers; hidden filters; skips"): [
        (f"{_MODELS[layer]}; {' and '.join(map(str, hidden)) or 'none'}; {'yes' if residual else 'no'}", recipe)
        for layer, hidden, residual in _SIZES
        for recipe in (HeatRecipe(model=ConvNetModel(layer, hidden=hidden, residual=residual)),)
    ],
    ("experts", "Table C.4", "Expert functions", "experts"): [
        ("Convolution", SMOE, 100.0),
        ("CoordConv", {"experts": "coordconv"}, 96.5, 0.3),
    ],
    ("weighted", "Table C.5", "Weighted or not", "weighted"): [("yes", {"weighted": True}, 100.0), ("no", SMOE, 100.0)],
    ("quantile-damping", "", "Error quantile by damping factor", "error quantile; damping factor"): [
        (f"{quantile:g}; {'none' if damping is None else f'{damping:g}'}", grid_recipe(quantile, damping))
        for quantile in QUANTILES
        for damping in DAMPINGS
    ],
    ("tolerances", "", "Tolerances", "unit; of the RC loss; of the damping"): [
        (f"{unit}; {of_loss:g}; {of_damping:g}", _with_tolerances(of_loss, of_damping, unit))
        for unit, pairs in _TOLERANCES.items()
        for of_loss, of_damping in pairs
    ],
    # With a gate that never learns and the true gate as bounds.
    ("rules", "", "What trains the gate", "experts; gate"): [
        *((f"three; {label}", rule) for label, rule in RULES.items()),
        ("three; random, frozen", {"gate": "random", "rule": _UNDAMPED}),
        ("three; knows the regions", {"gate": "fixed", "rule": _UNDAMPED}),
        *(
            (f"{size}; {label}", {**changes, **RULES[label]})
            for size, changes in _OTHER_SIZES.items()
            for label in ("RC, released settings", "default")
        ),
    ],
    ("units", "", "Data in other units", "data times; gate"): [
        (f"{unit:g}; {rule}", {**RULES[rule], **_in_unit(unit)})
        for unit in UNITS
        for rule in ("RC, released settings", "default")
    ],
    ("losses", "", "Squared or absolute error", "model; loss"): [
        (f"{model}; {kind}", replace(recipe, loss=loss))
        for model, recipe in _LOSS_MODELS.items()
        for loss, kind in (("mse", "squared"), ("mae", "absolute"))
    ],
}


def _small(recipe: HeatRecipe) -> HeatRecipe:
    return replace(recipe, data=replace(recipe.data, num_train_runs=250))


def _tiny(recipe: HeatRecipe) -> HeatRecipe:
    # A step of a ViT or of a fully-connected gate takes a hundred times as long as an SMoE's on the whole grid.
    return replace(recipe, data=replace(recipe.data, num_train_runs=100, spatial_shape=(16, 16)))


class HeatExperiment(Experiment):
    """Heat diffusion over regions of different diffusivity (paper section 3.1). The data are simulated."""

    name = "heat"
    recipe_type = HeatRecipe
    recipes = HEAT_RECIPES
    published_results = PUBLISHED
    tables = TableSet(
        name="heat",
        metrics=(ShownMetric("within_1_percent", is_percentage=True),),
        metric_text=(
            "Percentage of test pixels within 1 % of the truth: mean ± standard deviation over the seeds; 100.0 means "
            "every pixel of every seed."
        ),
        tables=tuple(_table(*head, rows) for head, rows in _TABLES.items()),
        scales=(
            Scale("paper", "1000 training runs of 100 steps"),
            Scale("small", "250 of them", _small, "smaller"),
            Scale("tiny", "100 of them on 16 x 16 pixels", _tiny, "smaller"),
        ),
    )


HEAT = HeatExperiment()
