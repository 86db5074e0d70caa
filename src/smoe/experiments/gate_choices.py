"""The memory of a recipe with each kind of gate that it could have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from smoe.experiments.gate_options import GateOptions
from smoe.experiments.memory_prediction import MemoryPrediction, PredictionError, predict_memory
from smoe.experiments.recipe import Recipe
from smoe.rules import StraightThrough

# What is named beside each kind: the options that it learns with.
_TENSOR, _FAMILIES = "gate tensor", "gate {}, order families, rule straight_through"


def predict_gates(recipe: Recipe, grid: tuple[int, int] | None = None) -> dict[str, MemoryPrediction]:
    """The memory by kind of gate, largest first; empty if the recipe has no gates to choose.

    A tensor gate has the rule and the order of the recipe. Those with fewer parameters have families and the
    straight-through rule, with which large gates store no scores; with other rules each layer would keep its own.

    Args:
        recipe: Recipe.
        grid: Rows and columns of the data, in place of those that the recipe would have.
    """
    model: Any = getattr(recipe, "model", None)
    if not isinstance(model, GateOptions):
        return {}
    families = replace(model, order="families", bias="expert")
    choices = {_TENSOR: replace(recipe, model=replace(model, gate="tensor"))}
    for kind in ("factorised", "coarse"):
        own = replace(families, gate=kind)
        choices[_FAMILIES.format(kind)] = replace(recipe, model=own, rule=StraightThrough(), damping=None)
    found: dict[str, MemoryPrediction] = {}
    for name, choice in choices.items():
        try:
            found[name] = predict_memory(choice, grid).memory
        except (ValueError, PredictionError):  # the experiment does not offer this gate
            continue
    return dict(sorted(found.items(), key=lambda item: -item[1].total))
