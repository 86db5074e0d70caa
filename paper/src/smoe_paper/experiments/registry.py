"""All experiments by name, and their recipes. An experiment is one folder and one line here."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smoe._plain import RecipeError, from_plain
from smoe.errors import suggest
from smoe_paper.experiments.experiment import Experiment
from smoe_paper.experiments.recipe import Recipe

# Module and object of each experiment; imported on first use.
EXPERIMENTS = {
    "heat": "smoe_paper.heat.experiment:HEAT",
    "weather": "smoe_paper.weather.experiment:WEATHER",
    "ens10": "smoe_paper.ens10.experiment:ENS10",
    "images": "smoe_paper.images.experiment:IMAGES",
    "imagenet": "smoe_paper.imagenet.experiment:IMAGENET",
    "heat-mesh": "smoe_paper.heat_mesh.experiment:HEAT_MESH",
}


@functools.cache
def find_experiment(name: str) -> Experiment:
    """The experiment of that name.

    Raises:
        RecipeError: If there is none; with the nearest name.
    """
    if name not in EXPERIMENTS:
        raise RecipeError(f"there is no experiment named {name!r}; {suggest(name, EXPERIMENTS)}")
    module, _, attribute = EXPERIMENTS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def experiment_of(recipe: Recipe) -> Experiment:
    """The experiment that a recipe belongs to."""
    return find_experiment(recipe.experiment)


def all_experiments() -> list[Experiment]:
    """Every experiment, in the order of the paper."""
    return [find_experiment(name) for name in EXPERIMENTS]


@functools.cache
def all_recipes() -> Mapping[str, Recipe]:
    """Every recipe by its full name."""
    return {name: recipe for experiment in all_experiments() for name, recipe in experiment.recipes.items()}


def find_recipe(name: str) -> Recipe:
    """The recipe of that name, or of a user's file, `path/to/recipe.py`.

    A file defines `RECIPE`, or several in a dictionary `RECIPES`, one of which is named as `path/to/recipe.py:NAME`.

    Raises:
        RecipeError: If there is none; with the nearest name.
    """
    path, _, entry = name.partition(":")
    if path.endswith(".py"):
        return _recipe_of_file(Path(path), entry)
    recipes = all_recipes()
    if name in recipes:
        return recipes[name]
    raise RecipeError(f"no recipe named {name!r}; {suggest(name, recipes, cutoff=0.4)}")


def _recipe_of_file(path: Path, entry: str) -> Recipe:
    if not path.is_file():
        raise RecipeError(f"there is no recipe file {path}")
    spec = importlib.util.spec_from_file_location(f"smoe_recipe_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses of the file look their annotations up in the module.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise RecipeError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    recipes: dict[str, object] = dict(getattr(module, "RECIPES", {}))
    if not recipes and not hasattr(module, "RECIPE"):
        raise RecipeError(f"{path} defines neither RECIPE nor RECIPES")
    if entry and entry not in recipes:
        raise RecipeError(f"{path} has no recipe named {entry!r}; {suggest(entry, recipes)}")
    if not entry and not hasattr(module, "RECIPE"):
        raise RecipeError(f"{path} has several recipes: name one, such as {path}:{next(iter(recipes))}")
    recipe = recipes[entry] if entry else module.RECIPE
    if not isinstance(recipe, Recipe):
        raise RecipeError(f"{path}: a recipe must derive from smoe_paper.experiments.recipe.Recipe, got {recipe!r}")
    return recipe


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
