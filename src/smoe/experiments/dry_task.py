"""A recipe's model and optimiser without its data, for plans made before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smoe.experiments.recipes import Recipe
from smoe.paper.ens10.models import EmosModel
from smoe.paper.ens10.recipes import EnsembleRecipe
from smoe.paper.heat.recipes import HeatRecipe
from smoe.paper.imagenet.recipes import ImageNetRecipe
from smoe.paper.images.recipes import ImageRecipe
from smoe.paper.weather.recipes import WeatherData, WeatherRecipe
from smoe.training.task import Task

# Of ENS-10: twice a week.
_STARTS_A_YEAR = 105


@dataclass(frozen=True)
class DryTask:
    """A task without data.

    Attributes:
        task: with a model, an optimiser and a loss; its splits are empty.
        input_shape: of one sample.
        target_shape: of one sample.
        num_train_samples: of the training split.
        num_validation_samples: of the validation split.
        source: where these numbers come from.
        num_classes: of a classifier, whose targets are classes and not fields.
    """

    task: Task
    input_shape: tuple[int, ...]
    target_shape: tuple[int, ...]
    num_train_samples: int
    num_validation_samples: int
    source: str
    num_classes: int | None = None


def build_dry_task(recipe: Recipe) -> DryTask:
    """The task of a recipe, made without simulating or reading fields."""
    if isinstance(recipe, HeatRecipe):
        return _heat(recipe)
    if isinstance(recipe, ImageNetRecipe):
        return _imagenet(recipe)
    if isinstance(recipe, ImageRecipe):
        return _images(recipe)
    return _ensemble(recipe) if isinstance(recipe, EnsembleRecipe) else _weather(recipe)


def _heat(recipe: HeatRecipe) -> DryTask:
    from smoe.paper.heat.build import build_task, make_region_map

    data = recipe.data
    grid = make_region_map(data).shape
    field = (1, int(grid[0]), int(grid[1]))
    num_train, num_validation = (runs * data.num_steps for runs in (data.num_train_runs, data.num_validation_runs))
    task = build_task(recipe, splits=())
    return DryTask(task, field, field, num_train, num_validation, "simulated for the run")


def _weather(recipe: WeatherRecipe) -> DryTask:
    from smoe.paper.weather.build import make_split, make_task
    from smoe.paper.weather.setting import USUAL_GRID, open_store, setting_of, usual_setting

    data = recipe.data
    if data.store is None:
        setting = usual_setting(data)
        num_train = _count_starts(data, data.train_years, data.skip_hours)
        num_validation = _count_starts(data, data.validation_years, 0)
        source = f"no store is named: the paper's channels at {USUAL_GRID}, hourly"
    else:
        store = open_store(data)
        setting = setting_of(data, store)
        num_train, num_validation = (
            len(make_split(recipe, store, split, _quietly)) for split in ("train", "validation")
        )
        source = f"{data.store}: {len(store.channels)} channels at {store.grid.name}, every {store.step_hours} h"
    shape = setting.shape
    return DryTask(
        make_task(recipe, setting),
        (shape.in_channels, *shape.grid),
        (shape.out_channels, *shape.grid),
        num_train,
        num_validation,
        source,
    )


def _ensemble(recipe: EnsembleRecipe) -> DryTask:
    from smoe.paper.ens10.build import make_split, make_task
    from smoe.paper.ens10.setting import open_store, setting_of, usual_setting

    data = recipe.data
    if data.store is None:
        setting = usual_setting()
        spans = (data.train_years, data.validation_years)
        num_train, num_validation = (_STARTS_A_YEAR * (last - first + 1) for first, last in spans)
        source = f"no store is named: ENS-10's z500 with 10 members, {_STARTS_A_YEAR} forecasts a year"
    else:
        store = open_store(data)
        setting = setting_of(store)
        num_train, num_validation = (
            len(make_split(recipe, store, split, _quietly)) for split in ("train", "validation")
        )
        source = f"{data.store}: {store.task} with {store.num_members} members"
    shape = setting.shape
    num_channels = shape.num_members if isinstance(recipe.model, EmosModel) else shape.in_channels
    return DryTask(
        make_task(recipe, setting),
        (num_channels, *shape.grid),
        # Truth, mean and spread of the ensemble, and the EFI.
        (3 + setting.has_efi, *shape.grid),
        num_train,
        num_validation,
        source,
    )


def _images(recipe: ImageRecipe) -> DryTask:
    from smoe.paper.images.build import make_task
    from smoe.paper.images.data.catalogue import IMAGE_SETS

    data = recipe.data
    image_set = IMAGE_SETS[data.name]
    num_images = image_set.num_images["train"]
    num_validation = int(image_set.validation_share * num_images)
    num_train = min(num_images - num_validation, data.images_per_epoch or num_images)
    source = f"the published {image_set.title}"
    num_classes = len(image_set.classes)
    return DryTask(make_task(recipe), image_set.image_shape, (), num_train, num_validation, source, num_classes)


def _imagenet(recipe: ImageNetRecipe) -> DryTask:
    from smoe.paper.imagenet.build import NUM_CLASSES, NUM_TRAIN_IMAGES, NUM_VALIDATION_IMAGES, make_task
    from smoe.paper.imagenet.data.class_folders import find_class_folders, hold_out

    data = recipe.data
    num_held, num_classes = data.held_out_per_class, NUM_CLASSES
    num_train, num_validation = NUM_TRAIN_IMAGES - num_held * num_classes, num_held * num_classes
    source = "no folder is named: the published ImageNet"
    if data.root is not None:
        kept, held = hold_out(find_class_folders(data.root / "train"), num_held)
        num_train, num_validation, num_classes = len(kept), len(held), len(kept.classes)
        source = f"{data.root}: {num_classes} classes"
    if not num_held:
        num_validation = NUM_VALIDATION_IMAGES if data.root is None else len(find_class_folders(data.root / "val"))
    size, task = data.train_size, make_task(recipe, num_classes)
    return DryTask(task, (3, size, size), (), num_train, num_validation, source, num_classes)


def _count_starts(data: WeatherData, years: tuple[int, int], skip_hours: int) -> int:
    """Samples of complete years, hourly unless the recipe says otherwise: a start needs its context and its target."""
    first, last = (np.datetime64(f"{year:04d}-01-01", "h") for year in (years[0], years[1] + 1))
    lead = data.lead_hours if data.continuous_lead_hours is None else data.continuous_lead_hours[1]
    num_hours = int((last - first).astype(int)) - skip_hours - max(data.context_hours) - lead
    return max(num_hours // (data.start_every_hours or 1), 0)


def _quietly(_: str) -> None:
    pass
