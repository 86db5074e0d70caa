"""Makes the data and the training task of an ImageNet recipe."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

from smoe import nn
from smoe.errors import DataError
from smoe.ops._interpolation import Interpolation
from smoe.training.metrics import Metric
from smoe.training.task import Task
from smoe_paper.baselines.low_rank import LowRankLocal2d
from smoe_paper.experiments.assemble import assemble_task
from smoe_paper.experiments.dry_task import DryTask
from smoe_paper.experiments.experiment import SPLITS, Notify
from smoe_paper.experiments.gated_layers import Learning
from smoe_paper.imagenet.build_model import build_model
from smoe_paper.imagenet.data.class_folders import find_class_folders, find_classes, hold_out
from smoe_paper.imagenet.data.folder_samples import AugmentedFolderImages, FolderImages
from smoe_paper.imagenet.recipes import ImageNetData, ImageNetRecipe
from smoe_paper.images.data.samples import ImageSamples
from smoe_paper.losses import CrossEntropy
from smoe_paper.metrics import Accuracy, MeanCrossEntropy

NUM_CLASSES = 1000

Samples = FolderImages | AugmentedFolderImages


def build_task(recipe: ImageNetRecipe, splits: tuple[str, ...] = SPLITS, notify: Notify = print) -> Task:
    """Makes everything that the training loop needs.

    Args:
        recipe: Recipe to train.
        splits: Images to list.
        notify: Receives messages about the number of images.
    """
    root = check_root(recipe.data)
    classes = find_classes(root / "train")
    samples = make_splits(recipe, classes, splits)
    for split, images in samples.items():
        notify(f"{split}: {len(images):,} images of {len(classes):,} classes")
    return make_task(recipe, len(classes), samples)


def check_root(data: ImageNetData) -> Path:
    """Returns the folder of the images.

    Raises:
        DataError: If the recipe names no folder.
    """
    if data.root is None:
        raise DataError("no images are named: give the folder that holds train and val as --data.root FOLDER")
    return data.root


def make_splits(recipe: ImageNetRecipe, classes: tuple[str, ...], splits: tuple[str, ...]) -> dict[str, Samples]:
    """Returns the samples of each split: `val` is the test split, and the validation split is a part of `train`."""
    data, root = recipe.data, check_root(recipe.data)
    num_held = data.held_out_per_class
    made: dict[str, Samples] = {}
    if "train" in splits or ("validation" in splits and num_held):
        kept, held = hold_out(find_class_folders(root / "train"), num_held)
        made["train"] = AugmentedFolderImages(kept, data.train_size, recipe.augmentation, recipe.seed)
        made["validation"] = FolderImages(held, data.resize, data.crop)
    if "test" in splits or ("validation" in splits and not num_held):
        made["test"] = FolderImages(find_class_folders(root / "val", classes), data.resize, data.crop)
    if not num_held and "test" in made:
        made["validation"] = made["test"]
    return {split: made[split] for split in splits}


def make_task(
    recipe: ImageNetRecipe, num_classes: int = NUM_CLASSES, samples: Mapping[str, Samples] | None = None
) -> Task:
    """Returns the task of a recipe.

    Args:
        recipe: Recipe to train.
        num_classes: Number of logits.
        samples: Samples of each split.
    """
    data = recipe.data
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model, Learning.of(recipe), data.train_size, num_classes)
    knows_grid = any(isinstance(module, (nn.RoutedLayer, LowRankLocal2d)) for module in model.modules())
    is_other_grid = knows_grid and data.crop != data.train_size
    metrics: list[Metric] = [Accuracy((1, 5)), MeanCrossEntropy()]
    return assemble_task(
        recipe,
        model,
        CrossEntropy(recipe.label_smoothing),
        metrics,
        samples,
        ImageSamples.collate,
        num_repetitions=recipe.augmentation.repetitions,
        for_evaluation=partial(for_size, size=data.crop, mode=data.interpolation) if is_other_grid else None,
    )


def for_size(model: torch.nn.Module, size: int, mode: Interpolation = "linear") -> torch.nn.Module:
    """Returns a copy of a network for images of another size, with interpolated gates and tables."""
    device = next(model.parameters()).device
    return nn.interpolate_grids(model, example_input=torch.zeros(1, 3, size, size, device=device), mode=mode)


def build_dry_task(recipe: ImageNetRecipe) -> DryTask:
    """Makes the task without reading images; without a folder, for the published classes."""
    root, size = recipe.data.root, recipe.data.train_size
    num_classes = NUM_CLASSES if root is None else len(find_class_folders(root / "train").classes)
    return DryTask(make_task(recipe, num_classes), (3, size, size), (), num_classes)
