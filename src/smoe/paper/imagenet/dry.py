"""Makes the task of an ImageNet recipe without its data, for estimates before a training."""

from __future__ import annotations

from smoe.experiments.dry_task import DryTask
from smoe.paper.imagenet.build import NUM_CLASSES, NUM_TRAIN_IMAGES, NUM_VALIDATION_IMAGES, make_task
from smoe.paper.imagenet.data.class_folders import find_class_folders, hold_out
from smoe.paper.imagenet.recipes import ImageNetRecipe


def build_dry_task(recipe: ImageNetRecipe) -> DryTask:
    """Makes the task without reading images."""
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
