"""Makes the task of an image recipe without its data, for estimates before a training."""

from __future__ import annotations

from smoe.experiments.dry_task import DryTask
from smoe.paper.images.build import make_task
from smoe.paper.images.data.catalogue import IMAGE_SETS
from smoe.paper.images.recipes import ImageRecipe


def build_dry_task(recipe: ImageRecipe) -> DryTask:
    """Makes the task without reading images."""
    data = recipe.data
    image_set = IMAGE_SETS[data.name]
    num_images = image_set.num_images["train"]
    num_validation = int(image_set.validation_share * num_images)
    num_train = min(num_images - num_validation, data.images_per_epoch or num_images)
    source = f"the published {image_set.title}"
    num_classes = len(image_set.classes)
    return DryTask(make_task(recipe), image_set.image_shape, (), num_train, num_validation, source, num_classes)
