"""Pictures of a run of ImageNet, and parts of its report."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from smoe.nn import RoutedLayer, SpatialGate
from smoe.reports.parts import Classes, Places
from smoe_paper.experiments.report_parts import ReportParts
from smoe_paper.experiments.task import OpenRun
from smoe_paper.imagenet.folders import MEAN, STD, FolderImages
from smoe_paper.imagenet.recipes import PUBLISHED

_NUM_CLASSES, _IMAGES_OF_CLASS = 10, 10


def draw_run(run: OpenRun, split: str) -> list[Path]:
    """Writes the pictures into the run's folder and returns their paths.

    Args:
        run: Run, opened with the split.
        split: Split whose mean images are drawn under the routing.
    """
    samples = run.task.splits[split]
    assert isinstance(samples, FolderImages)
    return [*_draw_curve(run), *_draw_routing(run, samples)]


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


def _draw_curve(run: OpenRun) -> list[Path]:
    from smoe_paper.charts import draw_accuracy

    keys = ("validation/accuracy", "validation/top5_accuracy")
    history = [record for record in run.directory.read_history() if record.get(keys[0]) is not None]
    if not history:
        return []
    paper = PUBLISHED.get(run.name)
    path = run.directory.pictures / "accuracy.png"
    draw_accuracy(history, path, keys=keys, reference=("paper, top-1", paper.mean) if paper else None)
    return [path]


def _draw_routing(run: OpenRun, samples: FolderImages) -> list[Path]:
    """Draws a picture for each gate, on the grid of the training images."""
    from smoe_paper.charts import draw_image_routing

    by_gate: dict[SpatialGate, list[RoutedLayer]] = {}
    for module in run.task.model.modules():
        if isinstance(module, RoutedLayer):
            by_gate.setdefault(module.gate, []).append(module)
    if not by_gate:
        return []
    means, classes = mean_images(samples), samples.images.classes
    names = {module: name for name, module in run.task.model.named_modules()}
    pictures = []
    for gate, layers in by_gate.items():
        with torch.no_grad():
            indices = layers[0].routing().indices.cpu().numpy()
        images = F.interpolate(means[None], indices.shape[1:], mode="bilinear", antialias=True)[0].clamp(0.0, 1.0)
        path = run.directory.pictures / f"routing-{names[layers[0]]}.png"
        served = names[layers[0]] + ("" if len(layers) == 1 else f" to {names[layers[-1]]}")
        title = f"{run.name}: {gate.num_selected} of {gate.num_experts} experts at each pixel; gate of {served}"
        draw_image_routing(indices, gate.num_experts, images.numpy(), classes[: len(images)], path, title=title)
        pictures.append(path)
    return pictures


def report_parts(run: OpenRun, split: str | None) -> ReportParts:
    """Returns mean images of the first classes of a split; nothing without data."""
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
