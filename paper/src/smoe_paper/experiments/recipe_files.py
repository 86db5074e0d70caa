"""Recipes from plain values."""

from __future__ import annotations

from typing import Any

from smoe._plain import RecipeError, from_plain
from smoe_paper.experiments.recipe import Recipe
from smoe_paper.experiments.registry import find_experiment


def recipe_from_plain(plain: dict[str, Any]) -> Recipe:
    """The inverse of `Recipe.plain`.

    Raises:
        RecipeError: If the experiment or a field is unknown or missing, or a value has another type.
    """
    name = plain.get("experiment")
    if not isinstance(name, str):
        raise RecipeError(f"experiment must be a text, got {name!r}")
    fields = {field: part for field, part in plain.items() if field != "experiment"}
    return from_plain(find_experiment(name).recipe_type, fields)
