"""Pictures of a run of ImageNet, and parts of its report."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch

from smoe.reports.parts import Classes, Places
from smoe_paper.experiments.experiment import Notify, ReportParts, ShowOptions
from smoe_paper.experiments.task import OpenRun
from smoe_paper.imagenet.folders import MEAN, STD, FolderImages
from smoe_paper.imagenet.recipes import PUBLISHED
from smoe_paper.images.pictures import draw_gates

_NUM_CLASSES, _IMAGES_OF_CLASS = 10, 10


def draw_run(run: OpenRun, options: ShowOptions) -> list[Path]:
    """Accuracies by epoch, and the routing of each gate over mean images, on the grid of the training images."""
    samples = run.task.splits[options.split]
    assert isinstance(samples, FolderImages)
    paper = PUBLISHED.get(run.name)
    keys = ("validation/accuracy", "validation/top5_accuracy")
    pictures = run.draw_curve(*keys, reference=("paper, top-1", paper.mean) if paper else None)
    stem = run.directory.pictures / "routing"
    return [*pictures, *draw_gates(run, mean_images(samples).numpy(), samples.images.classes, stem)]


def mean_images(samples: FolderImages) -> torch.Tensor:
    """Returns means of some images of the first classes, as brightness from 0 to 1, `(N, H, W)`."""
    labels = samples.images.labels
    means = []
    for number in range(min(_NUM_CLASSES, len(samples.images.classes))):
        views, _ = samples.__getitems__(np.flatnonzero(labels == number)[:_IMAGES_OF_CLASS].tolist())
        colours = views * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]
        means.append(colours.mean(dim=(0, 1)))
    brightness = torch.stack(means)
    return (brightness / brightness.max().clamp_min(1e-12)).clamp(0.0, 1.0)


def report_parts(run: OpenRun, split: str | None, notify: Notify) -> ReportParts:
    """Mean images of the first classes of a split; nothing without data."""
    del notify
    if split is None:
        return ReportParts()
    samples = run.task.splits[split]
    assert isinstance(samples, FolderImages)
    images = mean_images(samples).numpy()
    names = tuple(samples.images.classes[: len(images)])
    digest = hashlib.sha256("\n".join(map(str, samples.images.classes)).encode()).hexdigest()[:16]
    return ReportParts(
        places=Places("grid", images.shape[1:]),
        classes=Classes(names, images),
        data={
            "images": f"{len(samples.images.labels):,} of {len(samples.images.classes):,} classes, {split} split",
            "SHA-256 of the names of the classes": digest,
        },
    )
