"""All recipes by name, and recipes as plain values for a run's recipe.json. Imports nothing heavy."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from pathlib import Path
from typing import Any

from smoe.paper.ens10.recipes import ENSEMBLE_RECIPES, EnsembleRecipe
from smoe.paper.heat.recipes import HEAT_RECIPES, HeatRecipe
from smoe.paper.imagenet.recipes import IMAGENET_RECIPES, ImageNetRecipe
from smoe.paper.images.recipes import IMAGE_RECIPES, ImageRecipe
from smoe.paper.weather.recipes import WEATHER_RECIPES, WeatherRecipe
from smoe.suggestions import suggest

# The first one is that of the recipes stored when there was one experiment only, which do not say their class.
Recipe = HeatRecipe | WeatherRecipe | EnsembleRecipe | ImageRecipe | ImageNetRecipe

RECIPES: dict[str, Recipe] = {
    **HEAT_RECIPES,
    **WEATHER_RECIPES,
    **ENSEMBLE_RECIPES,
    **IMAGE_RECIPES,
    **IMAGENET_RECIPES,
}


class RecipeError(Exception):
    """A recipe that does not exist or does not fit."""


def find_recipe(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        RecipeError: if there is none; with the nearest name.
    """
    if name in RECIPES:
        return RECIPES[name]
    raise RecipeError(f"no recipe named {name!r}; {suggest(name, RECIPES, cutoff=0.4)}")


def recipe_to_plain(recipe: Recipe) -> dict[str, Any]:
    """A recipe as `to_plain` makes it, with the name of its class."""
    return {"type": type(recipe).__name__, **to_plain(recipe)}


def recipe_from_plain(plain: dict[str, Any]) -> Recipe:
    """The inverse of `recipe_to_plain`; without the name of a class it is a recipe of the heat experiment.

    Raises:
        RecipeError: if the class or a field is unknown; a missing field has its default.
    """
    return _restore(Recipe, plain)


def to_plain(value: Any) -> Any:
    """A recipe as dictionaries, lists and numbers; where a field may be of several classes, with the class's name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = _type_hints(type(value))
        plain: dict[str, Any] = {}
        for field in dataclasses.fields(value):
            part = getattr(value, field.name)
            name = {"type": type(part).__name__} if len(_classes(hints[field.name])) > 1 else {}
            plain[field.name] = {**name, **to_plain(part)} if name else to_plain(part)
        return plain
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def from_plain(recipe_type: type[Any], plain: dict[str, Any]) -> Any:
    """The inverse of `to_plain`.

    Raises:
        RecipeError: if a field is unknown; a missing one has its default.
    """
    hints = _type_hints(recipe_type)
    unknown = sorted(set(plain) - set(hints))
    if unknown:
        raise RecipeError(
            f"{recipe_type.__name__} has no field {', '.join(unknown)}: was it written by another version?"
        )
    return recipe_type(**{name: _restore(hints[name], value) for name, value in plain.items()})


def _restore(hint: Any, value: Any) -> Any:
    classes = _classes(hint)
    if classes:
        # A run of the time when there was one class only has no name in it: that class comes first.
        name = value.get("type", classes[0].__name__)
        of_that_name = [kind for kind in classes if kind.__name__ == name]
        if not of_that_name:
            raise RecipeError(f"there is no {name!r} among {', '.join(kind.__name__ for kind in classes)}")
        return from_plain(of_that_name[0], {key: item for key, item in value.items() if key != "type"})
    if isinstance(value, list):
        return tuple(value)
    return Path(value) if value is not None and Path in _options(hint) else value


@functools.cache
def _type_hints(recipe_type: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(recipe_type)


def _options(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


def _classes(hint: Any) -> list[type[Any]]:
    """The dataclasses a field may hold."""
    return [option for option in _options(hint) if dataclasses.is_dataclass(option) and isinstance(option, type)]
