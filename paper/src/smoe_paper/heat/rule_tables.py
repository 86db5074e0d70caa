"""Additional tables: training rules of the gate, units of the data, losses. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from smoe.rules import EndToEnd, Probing, RoutingClassification, Rule, StraightThrough
from smoe_paper.experiments.optimizers import Adam
from smoe_paper.experiments.result_tables.tables import ResultTable, Row
from smoe_paper.heat.model_options import ConvNetModel, SpatialMoEModel
from smoe_paper.heat.recipes import HeatDiffusion, HeatRecipe

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
