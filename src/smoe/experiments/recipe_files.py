"""Recipes from plain values, of this version or an earlier one."""

from __future__ import annotations

from typing import Any

from smoe.experiments.migrations import SCHEMA, SchemaError, migrate_recipe
from smoe.experiments.plain import RecipeError, from_plain
from smoe.experiments.recipe import Recipe
from smoe.experiments.registry import find_experiment


def recipe_from_plain(plain: dict[str, Any], schema: int = SCHEMA) -> Recipe:
    """The inverse of `Recipe.plain`, of this or an earlier version.

    Raises:
        RecipeError: If the experiment or a field is unknown or missing, or a value has another type.
    """
    try:
        plain = migrate_recipe(plain, schema)
        experiment = find_experiment(plain["experiment"])
    except SchemaError as error:
        raise RecipeError(str(error)) from error
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise RecipeError(f"not a recipe: {type(error).__name__}: {error}") from error
    return from_plain(experiment.recipe_type, {name: part for name, part in plain.items() if name != "experiment"})
