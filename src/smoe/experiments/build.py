"""Makes what a recipe trains, whichever experiment it belongs to."""

from __future__ import annotations

from collections.abc import Callable

from smoe.experiments.recipes import Recipe
from smoe.paper.ens10.recipes import EnsembleRecipe
from smoe.paper.heat.recipes import HeatRecipe
from smoe.paper.imagenet.recipes import ImageNetRecipe
from smoe.paper.images.recipes import ImageRecipe
from smoe.training.task import Task

SPLITS = ("train", "validation", "test")


def build_task(recipe: Recipe, splits: tuple[str, ...] = SPLITS, say: Callable[[str], None] = print) -> Task:
    """Everything the training loop needs.

    Args:
        recipe: what to train.
        splits: the data to make.
        say: told what is being made.
    """
    # Imported where they are needed: each experiment reads its own files with its own packages.
    if isinstance(recipe, HeatRecipe):
        from smoe.paper.heat.build import build_task as build_heat_task

        return build_heat_task(recipe, splits, say)
    if isinstance(recipe, EnsembleRecipe):
        from smoe.paper.ens10.build import build_task as build_ensemble_task

        return build_ensemble_task(recipe, splits, say)
    if isinstance(recipe, ImageNetRecipe):
        from smoe.paper.imagenet.build import build_task as build_imagenet_task

        return build_imagenet_task(recipe, splits, say)
    if isinstance(recipe, ImageRecipe):
        from smoe.paper.images.build import build_task as build_image_task

        return build_image_task(recipe, splits, say)
    from smoe.paper.weather.build import build_task as build_weather_task

    return build_weather_task(recipe, splits, say)
