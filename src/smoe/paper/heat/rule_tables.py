"""Tables of our own: what trains the gate on heat diffusion, in which unit, by which loss. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import replace

from smoe.experiments.reproduction.tables import ResultTable, Row
from smoe.options import RoutingTraining
from smoe.paper.heat.models import ConvNetModel, SpatialMoEModel
from smoe.paper.heat.notes import NOTES
from smoe.paper.heat.recipes import Adam, HeatDiffusion, HeatRecipe

RULES = {
    "RC, released settings": RoutingTraining(),
    "RC, the paper's text": RoutingTraining(error_quantile=0.7, damping=0.1),
    "probing": RoutingTraining(training_rule="probe"),
    "straight-through": RoutingTraining(training_rule="straight_through"),
    "end to end": RoutingTraining(training_rule="end_to_end", damping=None),
}
UNITS = (1e-3, 1.0, 1e3)


def rule_table() -> ResultTable:
    """Every rule, between a gate that never learns and one that knows the regions."""
    name = "heat/rules"
    rows = [Row(("three", rule), HeatRecipe(routing=routing)) for rule, routing in RULES.items()]
    undamped = RoutingTraining(damping=None)
    rows += [
        Row(("three", "random, frozen"), HeatRecipe(model=SpatialMoEModel(gate="random"), routing=undamped)),
        Row(("three", "knows the regions"), HeatRecipe(model=SpatialMoEModel(gate="fixed"), routing=undamped)),
    ]
    others = {
        "six": SpatialMoEModel(num_experts=6),
        "three of 5 x 5": SpatialMoEModel(kernel_size=5),
        "two of six, summed": SpatialMoEModel(num_experts=6, num_selected=2),
    }
    rows += [
        Row((experts, rule), HeatRecipe(model=model, routing=RULES[rule]))
        for experts, model in others.items()
        for rule in ("RC, released settings", "probing")
    ]
    return ResultTable(name, "What trains the gate", ("experts", "gate"), tuple(rows), "", NOTES[name])


def unit_table() -> ResultTable:
    """The same data in other units."""
    name = "heat/units"
    rows = [
        Row(
            (f"{unit:g}", rule),
            # An eps far below the gradients of the smallest unit: what differs is the rule, not the optimiser.
            HeatRecipe(data=HeatDiffusion(unit=unit), routing=RULES[rule], optimizer=Adam(eps=1e-15)),
        )
        for unit in UNITS
        for rule in ("RC, released settings", "probing")
    ]
    return ResultTable(name, "Data in other units", ("data times", "gate"), tuple(rows), "", NOTES[name])


def loss_table() -> ResultTable:
    """What models that know no regions learn depends on the loss."""
    name = "heat/losses"
    models = {
        "one 3 x 3 convolution": HeatRecipe(model=ConvNetModel("conv", hidden=())),
        "Convolution": HeatRecipe(model=ConvNetModel("conv", hidden=(8,))),
        "CoordConv": HeatRecipe(model=ConvNetModel("coordconv", hidden=(1,))),
        "SMoE, no RC loss, no damping": HeatRecipe(routing=RULES["end to end"]),
        "SMoE, RC loss and damping": HeatRecipe(routing=RULES["RC, released settings"]),
        "SMoE, probing": HeatRecipe(routing=RULES["probing"]),
    }
    rows = [
        Row((model, kind), replace(recipe, loss=loss), note=NOTES[name, f"{model}, {kind}"])
        for model, recipe in models.items()
        for loss, kind in (("mse", "squared"), ("mae", "absolute"))
    ]
    return ResultTable(name, "Squared or absolute error", ("model", "loss"), tuple(rows), "", NOTES[name])
