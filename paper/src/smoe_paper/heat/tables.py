"""The paper's tables of heat diffusion, and our own. Imports no torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from smoe.rules import Damping, EndToEnd, Probing, RoutingClassification, Rule, StraightThrough
from smoe_paper.experiments.recipe import Adam, AuxiliaryLosses
from smoe_paper.experiments.tables import PublishedResult, ResultTable, Row, Scale, ShownMetric, TableSet
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
# Damping of the released code, used with and without the RC loss.
RELEASED_DAMPING = RELEASED.damping


def _smoe(
    rule: Rule = RELEASED, auxiliary: AuxiliaryLosses | None = None, damping: Damping | None = None, **model
) -> HeatRecipe:
    return HeatRecipe(
        model=SpatialMoEModel(**model), rule=rule, damping=damping, auxiliary=auxiliary or AuxiliaryLosses()
    )


def _row(labels: str | tuple[str, ...], recipe: HeatRecipe, paper: PublishedResult | None = None) -> Row:
    cells = (labels,) if isinstance(labels, str) else labels
    return Row(cells, recipe, () if paper is None else (paper,))


def _mark(is_on: bool) -> str:
    return "yes" if is_on else "no"


def _main() -> ResultTable:
    labels = {
        "heat/conv": "Convolution",
        "heat/coordconv": "CoordConv",
        "heat/condconv": "CondConv",
        "heat/lrlcn": "LRLCN",
        "heat/lrlcn-nd": "LRLCN-ND",
        "heat/lcn": "LCN",
        "heat/fc": "FC",
        "heat/vit": "ViT",
        "heat/vmoe": "V-MoE",
        "heat/smoe": "SMoE",
    }
    name = "heat/main"
    rows = [_row(label, HEAT_RECIPES[recipe], PUBLISHED[recipe]) for recipe, label in labels.items()]
    return ResultTable(name, "Heat diffusion: all models", ("model",), tuple(rows), "Figure 3, left")


def _training_recipe(*, rc_loss: bool, damped: bool) -> HeatRecipe:
    if not rc_loss:
        return _smoe(EndToEnd(), damping=RELEASED_DAMPING if damped else None)
    return _smoe(RELEASED if damped else replace(RELEASED, damping=None))


def _training() -> ResultTable:
    name = "heat/training"
    paper = {
        (False, False): heat_result(91.5, 0.4, 14),
        (False, True): heat_result(91.6, 0.2, 16),
        (True, False): heat_result(96.7, 0.4, 15),
        (True, True): heat_result(100.0, 0.0, 8),
    }
    rows = [
        _row(
            (_mark(rc_loss), _mark(damped)),
            _training_recipe(rc_loss=rc_loss, damped=damped),
            result,
        )
        for (rc_loss, damped), result in paper.items()
    ]
    return ResultTable(name, "RC loss and expert error damping", ("RC loss", "damping"), tuple(rows), "Table 1")


def _gates() -> ResultTable:
    name = "heat/gates"
    rows = [
        _row("Fully-connected", _smoe(gate="linear"), heat_result(85.2, 5.7)),
        _row("3 x 3 convolution", _smoe(gate="conv"), heat_result(91.3, 0.3)),
        _row("3 x 3 CoordConv", _smoe(gate="coordconv"), heat_result(91.5, 0.4)),
        _row("3 x 3 LCN", _smoe(gate="lcn"), heat_result(96.3, 1.2)),
        _row("3 x 3 CoordConv x 3", _smoe(gate="coordconv3"), heat_result(91.6, 0.2)),
        _row("Tensor routing", SMOE, heat_result(100.0)),
    ]
    return ResultTable(name, "Gate functions", ("gate",), tuple(rows), "Table 2")


def _configurations() -> ResultTable:
    name = "heat/configurations"
    rows = [
        _row("six experts", _smoe(num_experts=6), heat_result(100.0)),
        _row("5 x 5 experts", _smoe(kernel_size=5), heat_result(100.0)),
        _row("two of six experts, summed", _smoe(num_experts=6, num_selected=2), heat_result(100.0)),
    ]
    return ResultTable(
        name, "When the right configuration is not known", ("configuration",), tuple(rows), "section 3.1"
    )


def _starts() -> ResultTable:
    name = "heat/starts"
    rows = [
        _row(("random", "no", "random", "no"), _smoe(EndToEnd()), heat_result(91.5, 0.4)),
        _row(("random", "no", "perfect", "no"), _smoe(EndToEnd(), experts_start="true"), heat_result(91.4, 0.4)),
        _row(
            ("random", "no", "perfect", "yes"),
            _smoe(EndToEnd(), experts_start="true", experts_frozen=True),
            heat_result(80.9, 0.2),
        ),
        _row(("perfect", "no", "random", "no"), _smoe(EndToEnd(), gate_start="true"), heat_result(96.0, 0.3)),
        _row(("perfect", "yes", "random", "no"), _smoe(EndToEnd(), gate="fixed"), heat_result(100.0)),
        _row(
            ("perfect", "no", "perfect", "no"),
            _smoe(EndToEnd(), gate_start="true", experts_start="true"),
            heat_result(100.0),
        ),
    ]
    columns = ("gate starts", "frozen", "experts start", "frozen")
    return ResultTable(name, "Starting at the truth, without RC loss and damping", columns, tuple(rows), "Table B.1")


def _normalization() -> ResultTable:
    name = "heat/normalization"
    rows = [
        _row("softmax", _smoe(normalization="softmax"), heat_result(100.0)),
        _row("absolute value", _smoe(normalization="abs"), heat_result(90.2, 0.3)),
        _row("softmax and absolute value", _smoe(normalization="abs_softmax"), heat_result(100.0)),
        _row("none", SMOE, heat_result(100.0)),
    ]
    return ResultTable(name, "Normalisation of the scores", ("normalisation",), tuple(rows), "Table C.1")


# Importance, load, spatial agreement, noise; the paper's result with the RC loss and damping, and without.
_AUXILIARY = (
    ((False, False, False, False), heat_result(100.0), heat_result(91.5, 0.4)),
    ((True, False, False, False), heat_result(100.0), heat_result(90.8, 0.6)),
    ((True, False, False, True), heat_result(95.7, 0.2), heat_result(74.0, 0.2)),
    ((True, True, False, True), heat_result(95.7, 0.3), heat_result(73.9, 0.5)),
    ((False, True, False, True), heat_result(95.7, 0.2), heat_result(74.2, 0.3)),
    ((False, False, False, True), heat_result(95.7, 0.4), heat_result(73.9, 0.5)),
    ((True, False, True, False), heat_result(100.0), heat_result(91.3, 0.2)),
    ((True, False, True, True), heat_result(95.6, 0.5), heat_result(74.1, 0.2)),
    ((True, True, True, True), heat_result(95.7, 0.3), heat_result(73.7, 0.3)),
    ((False, True, True, True), heat_result(95.7, 0.1), heat_result(74.0, 0.4)),
    ((False, False, True, True), heat_result(95.7, 0.2), heat_result(73.9, 0.3)),
)


def _auxiliary(*, rc_loss: bool) -> ResultTable:
    name = "heat/auxiliary" if rc_loss else "heat/auxiliary-end-to-end"
    rows: list[Row] = []
    for (importance, load, agreement, noise), with_rc, without_rc in _AUXILIARY:
        recipe = _smoe(
            RELEASED if rc_loss else EndToEnd(),
            AuxiliaryLosses(importance, load, agreement),
            gate_noise=noise,
        )
        labels = tuple(_mark(is_on) for is_on in (importance, load, agreement, noise))
        rows.append(_row(labels, recipe, with_rc if rc_loss else without_rc))
    kind = "with" if rc_loss else "without"
    return ResultTable(
        name,
        f"Auxiliary losses and noise, {kind} RC loss and damping",
        ("importance", "load", "spatial agreement", "noise"),
        tuple(rows),
        "Table C.2" if rc_loss else "Table C.3",
    )


def _experts() -> ResultTable:
    name = "heat/experts"
    rows = [
        _row("Convolution", SMOE, heat_result(100.0)),
        _row("CoordConv", _smoe(experts="coordconv"), heat_result(96.5, 0.3)),
    ]
    return ResultTable(name, "Expert functions", ("experts",), tuple(rows), "Table C.4")


def _weighted() -> ResultTable:
    name = "heat/weighted"
    rows = [
        _row("yes", _smoe(weighted=True), heat_result(100.0)),
        _row("no", SMOE, heat_result(100.0)),
    ]
    return ResultTable(name, "Weighted or not", ("weighted",), tuple(rows), "Table C.5")


SHORT_EPOCHS = 10
QUANTILES = tuple(tenth / 10 for tenth in range(1, 10))
DAMPINGS: tuple[float | None, ...] = (0.0, 0.1, 0.5, None)


def grid_recipe(error_quantile: float, damping: float | None) -> HeatRecipe:
    """Returns the recipe of a cell of the table of quantiles and damping factors."""
    damped = None if damping is None else Damping(factor=damping, error_quantile=error_quantile)
    return _smoe(RoutingClassification(error_quantile=error_quantile, damping=damped))


def _quantile_damping() -> ResultTable:
    name = "heat/quantile-damping"
    rows = [
        _row((f"{quantile:g}", "none" if damping is None else f"{damping:g}"), grid_recipe(quantile, damping))
        for quantile in QUANTILES
        for damping in DAMPINGS
    ]
    return ResultTable(name, "Error quantile by damping factor", ("error quantile", "damping factor"), tuple(rows), "")


def _with_tolerances(tolerance: float, damping_tolerance: float, unit: str) -> RoutingClassification:
    damping = Damping(factor=0.0, error_quantile=0.3, tolerance=damping_tolerance, tolerance_unit=unit)
    return replace(RELEASED, tolerance=tolerance, tolerance_unit=unit, damping=damping)


def _tolerances() -> ResultTable:
    name = "heat/tolerances"
    equal = ((0.0, 0.0), (1e-5, 1e-5), (1e-4, 1e-4), (1e-3, 1e-3))
    pairs = [("data", *pair) for pair in ((1e-5, 1e-3), *equal, (0.0, 1e-3), (1e-6, 1e-3), (1e-5, 1e-2))]
    # The root mean square of the data is 0.054: the first pair is about equal to the tolerances in data units.
    pairs += [("output", *pair) for pair in ((2e-4, 2e-2), (1e-4, 1e-2), (1e-3, 2e-2), (1e-2, 1e-2))]
    rows = [
        _row(
            (unit, f"{tolerance:g}", f"{damping_tolerance:g}"),
            _smoe(_with_tolerances(tolerance, damping_tolerance, unit)),
        )
        for unit, tolerance, damping_tolerance in pairs
    ]
    return ResultTable(name, "Tolerances", ("unit", "of the RC loss", "of the damping"), tuple(rows), "")


def _small(recipe: HeatRecipe) -> HeatRecipe:
    return replace(recipe, data=replace(recipe.data, num_train_runs=250))


def _short(recipe: HeatRecipe) -> HeatRecipe:
    # A step of a ViT or of a fully-connected gate takes a hundred times as long as that of an SMoE.
    return replace(_small(recipe), training=replace(recipe.training, max_epochs=SHORT_EPOCHS))


def _same(recipe: HeatRecipe) -> HeatRecipe:
    return recipe


RULES: dict[str, Rule] = {
    "RC, released settings": RoutingClassification.released(),
    "RC, the paper's text": RoutingClassification.paper(),
    "probing": Probing(),
    "straight-through": StraightThrough(share=1.0, noise=0.0),
    "end to end": EndToEnd(),
}
UNITS = (1e-3, 1.0, 1e3)


def rule_table() -> ResultTable:
    """Table of all rules, with a gate that never learns and the true gate as bounds."""
    name = "heat/rules"
    rows = [Row(("three", label), HeatRecipe(rule=rule)) for label, rule in RULES.items()]
    undamped = replace(RoutingClassification.released(), damping=None)
    rows += [
        Row(("three", "random, frozen"), HeatRecipe(model=SpatialMoEModel(gate="random"), rule=undamped)),
        Row(("three", "knows the regions"), HeatRecipe(model=SpatialMoEModel(gate="fixed"), rule=undamped)),
    ]
    others = {
        "six": SpatialMoEModel(num_experts=6),
        "three of 5 x 5": SpatialMoEModel(kernel_size=5),
        "two of six, summed": SpatialMoEModel(num_experts=6, num_selected=2),
    }
    rows += [
        Row((experts, label), HeatRecipe(model=model, rule=RULES[label]))
        for experts, model in others.items()
        for label in ("RC, released settings", "probing")
    ]
    return ResultTable(name, "What trains the gate", ("experts", "gate"), tuple(rows), "")


# What a layer with default arguments is, written out, so that a stored run keeps its meaning when the default changes:
# with one output channel, and with several.
_DEFAULT_OF_ONE: dict[str, Any] = {"bias": "expert"}
_DEFAULT_OF_SEVERAL: dict[str, Any] = {"bias": "expert", "gate": "factorised", "order": "families"}
_DEFAULT_RULE = StraightThrough(temperature=1.0, share=None, noise=1.25, warm_up=100, patience=0)


def default_table() -> ResultTable:
    """Table of layers with default arguments."""
    three = HeatRecipe(model=SpatialMoEModel(**_DEFAULT_OF_ONE), rule=Probing())
    several = SpatialMoEModel(num_experts=6, num_selected=2, **_DEFAULT_OF_SEVERAL)
    recipes = {
        ("three", "as simulated"): three,
        ("six", "as simulated"): replace(three, model=SpatialMoEModel(num_experts=6, **_DEFAULT_OF_ONE)),
        ("three of 5 x 5", "as simulated"): replace(three, model=SpatialMoEModel(kernel_size=5, **_DEFAULT_OF_ONE)),
        ("two of six, summed", "as simulated"): HeatRecipe(model=several, rule=_DEFAULT_RULE),
        **{
            ("three", f"times {unit:g}"): replace(three, data=HeatDiffusion(unit=unit), optimizer=Adam(eps=1e-15))
            for unit in UNITS
            if unit != 1.0
        },
    }
    rows = [Row(labels, recipe) for labels, recipe in recipes.items()]
    return ResultTable("heat/default", "Layers with default arguments", ("experts", "data"), tuple(rows), "")


def unit_table() -> ResultTable:
    """Table of the same data in other units."""
    name = "heat/units"
    rows = [
        Row(
            (f"{unit:g}", rule),
            # An eps far below the gradients of the smallest unit, so that only the rule differs.
            HeatRecipe(data=HeatDiffusion(unit=unit), rule=RULES[rule], optimizer=Adam(eps=1e-15)),
        )
        for unit in UNITS
        for rule in ("RC, released settings", "probing")
    ]
    return ResultTable(name, "Data in other units", ("data times", "gate"), tuple(rows), "")


def loss_table() -> ResultTable:
    """Table of the loss on which models without regions depend."""
    name = "heat/losses"
    models = {
        "one 3 x 3 convolution": HeatRecipe(model=ConvNetModel("conv", hidden=())),
        "Convolution": HeatRecipe(model=ConvNetModel("conv", hidden=(8,))),
        "CoordConv": HeatRecipe(model=ConvNetModel("coordconv", hidden=(1,))),
        "SMoE, no RC loss, no damping": HeatRecipe(rule=RULES["end to end"]),
        "SMoE, RC loss and damping": HeatRecipe(rule=RULES["RC, released settings"]),
        "SMoE, probing": HeatRecipe(rule=RULES["probing"]),
    }
    rows = [
        Row((model, kind), replace(recipe, loss=loss))
        for model, recipe in models.items()
        for loss, kind in (("mse", "squared"), ("mae", "absolute"))
    ]
    return ResultTable(name, "Squared or absolute error", ("model", "loss"), tuple(rows), "")


HEAT_TABLES = TableSet(
    name="heat",
    metrics=(ShownMetric("within_1_percent", is_percentage=True),),
    metric_text=(
        "Percentage of test pixels within 1 % of the truth: mean ± standard deviation over the seeds; 100.0 means "
        "every pixel of every seed."
    ),
    tables=(
        _main(),
        _training(),
        _gates(),
        _configurations(),
        _starts(),
        _normalization(),
        _auxiliary(rc_loss=True),
        _auxiliary(rc_loss=False),
        _experts(),
        _weighted(),
        _quantile_damping(),
        _tolerances(),
        rule_table(),
        default_table(),
        unit_table(),
        loss_table(),
    ),
    scales=(
        Scale("paper", "1000 training runs of 100 steps", _same),
        Scale("small", "250 of them", _small),
        Scale("short", f"250 of them, stopped after {SHORT_EPOCHS} epochs", _short),
    ),
    data_field="cache_dir",
)
