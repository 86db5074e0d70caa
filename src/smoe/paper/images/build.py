"""Makes the data and the training task of a recipe that classifies small images."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.utils.data import Dataset

from smoe.errors import DataError
from smoe.experiments.build_optimizer import build_optimizer
from smoe.losses import CrossEntropy
from smoe.metrics import Accuracy, ClassErrors, MeanCrossEntropy, Metric
from smoe.paper.images.build_model import build_model
from smoe.paper.images.data.catalogue import IMAGE_SETS
from smoe.paper.images.data.image_files import LabelledImages, read_images
from smoe.paper.images.data.samples import DrawnImages, ImageSamples, split_training
from smoe.paper.images.recipes import ImageData, ImageRecipe
from smoe.training.routing_warmup import RoutingWarmup
from smoe.training.task import Task

Progress = Callable[[str], None]


def build_task(
    recipe: ImageRecipe, splits: tuple[str, ...] = ("train", "validation", "test"), say: Progress = print
) -> Task:
    """Everything the training loop needs.

    Args:
        recipe: what to train.
        splits: the data to read.
        say: told of files that are not the published ones.
    """
    images = make_splits(recipe.data, splits, say)
    shape = next((split.image_shape for split in images.values()), None)
    samples: dict[str, ImageSamples | DrawnImages] = {**images}
    if "train" in images and recipe.data.images_per_epoch is not None:
        samples["train"] = DrawnImages(images["train"], recipe.data.images_per_epoch, recipe.seed)
    return make_task(recipe, shape, samples)


def make_task(
    recipe: ImageRecipe,
    image_shape: tuple[int, int, int] | None = None,
    samples: Mapping[str, Dataset[tuple[torch.Tensor, torch.Tensor]]] | None = None,
) -> Task:
    """The task of a recipe.

    Args:
        recipe: what to train.
        image_shape: channels, rows and columns; None for those of the published images.
        samples: by split.
    """
    image_set = IMAGE_SETS[recipe.data.name]
    num_classes = len(image_set.classes)
    metrics: list[Metric] = [Accuracy(), MeanCrossEntropy(), ClassErrors(num_classes)]
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model, recipe.routing, image_shape or image_set.image_shape, num_classes)
    return Task(
        model,
        build_optimizer(model, recipe.optimizer, is_fused=recipe.training.precision != "fp16"),
        CrossEntropy(recipe.label_smoothing),
        metrics,
        {} if samples is None else samples,
        ImageSamples.collate,
        recipe.seed,
        begin_epoch=RoutingWarmup(model, recipe.routing_warmup_epochs).begin_epoch,
    )


def make_splits(data: ImageData, splits: tuple[str, ...], say: Progress = print) -> dict[str, ImageSamples]:
    """The samples of each split: the first training images are the validation."""
    image_set = IMAGE_SETS[data.name]
    found: dict[str, LabelledImages] = {}
    if "train" in splits or "validation" in splits:
        training = read_images(data.name, data.root, "train", verify=data.verify, say=say)
        found |= split_training(training, image_set)
    if "test" in splits:
        found["test"] = read_images(data.name, data.root, "test", verify=data.verify, say=say)
    samples = {}
    for split in splits:
        images = found[split]
        if not len(images.labels):
            raise DataError(f"{data.root}: too few images for a {split} split")
        samples[split] = ImageSamples(images.images, images.labels, image_set.value_range)
    return samples
