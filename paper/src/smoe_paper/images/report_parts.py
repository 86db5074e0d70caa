"""What a report of an image run shows beside its scores: mean images of the classes, and mistakes."""

from __future__ import annotations

import torch

from smoe.reports.parts import Classes, Places
from smoe_paper.experiments.open_run import OpenRun
from smoe_paper.experiments.report_parts import ReportParts
from smoe_paper.images.data.catalogue import IMAGE_SETS
from smoe_paper.images.data.samples import ImageSamples
from smoe_paper.images.pictures import confusion_of, mean_images
from smoe_paper.images.recipes import ImageRecipe


def report_parts(run: OpenRun, split: str | None) -> ReportParts:
    """Returns the classes of a split with their mean images and the confusion matrix; nothing without data."""
    assert isinstance(run.recipe, ImageRecipe)
    if split is None:
        return ReportParts()
    samples = run.task.splits[split]
    assert isinstance(samples, ImageSamples)
    image_set = IMAGE_SETS[run.recipe.data.name]
    names = image_set.classes
    counts = torch.bincount(samples.labels.long(), minlength=len(names))
    confusion = confusion_of(run, samples, len(names))
    return ReportParts(
        places=Places("grid", tuple(samples.image_shape[1:])),
        baselines={"commonest class": {"accuracy": 100.0 * float(counts.max() / counts.sum())}},
        classes=Classes(names, mean_images(samples, len(names)), confusion.numpy()),
        data={"images": f"{image_set.title}, {len(samples):,} of the {split} split"},
    )
