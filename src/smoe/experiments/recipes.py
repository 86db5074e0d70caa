"""All recipes by name, and recipes as plain values for a run's recipe.json. Imports nothing heavy."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from pathlib import Path
from typing import Any

from smoe.experiments.heat.recipes import HEAT_RECIPES, HeatRecipe

Recipe = HeatRecipe

RECIPES: dict[str, Recipe] = {**HEAT_RECIPES}


class RecipeError(Exception):
    """A recipe that does not exist or does not fit."""


def find_recipe(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        RecipeError: if there is none; with the nearest name.
    """
    if name in RECIPES:
        return RECIPES[name]
    near = difflib.get_close_matches(name, RECIPES, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(RECIPES)}"
    raise RecipeError(f"no recipe named {name!r}; {hint}")


def to_plain(value: Any) -> Any:
    """A recipe as dictionaries, lists and numbers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def from_plain(recipe_type: type[Any], plain: dict[str, Any]) -> Any:
    """The inverse of `to_plain`.

    Raises:
        RecipeError: if a field is unknown; a missing one has its default.
    """
    hints = typing.get_type_hints(recipe_type)
    unknown = sorted(set(plain) - set(hints))
    if unknown:
        raise RecipeError(
            f"{recipe_type.__name__} has no field {', '.join(unknown)}: was it written by another version?"
        )
    return recipe_type(**{name: _restore(hints[name], value) for name, value in plain.items()})


def _restore(hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_plain(hint, value)
    options = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    if isinstance(value, list):
        return tuple(value)
    return Path(value) if value is not None and Path in options else value
