"""Pictures of one image run: accuracy by epoch, confusion matrix, and the routing over mean images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from smoe.errors import DataError
from smoe.nn import RoutedLayer, SpatialGate
from smoe.training.distribution import make_accelerator
from smoe.training.evaluation import predict
from smoe_paper.experiments.open_run import OpenRun
from smoe_paper.images.data.catalogue import IMAGE_SETS
from smoe_paper.images.data.samples import ImageSamples
from smoe_paper.images.published import PUBLISHED
from smoe_paper.images.recipes import ImageRecipe
from smoe_paper.metrics import confusion_matrix


def draw_run(run: OpenRun, split: str) -> list[Path]:
    """Writes the pictures into the run's folder and returns their paths.

    Args:
        run: Run, opened with the split.
        split: Split whose images are classified, and whose mean images are drawn under the routing.
    """
    samples, classes = _images_of(run, split)
    confusion = confusion_of(run, samples, len(classes))
    pictures = _draw_curve(run)
    path = run.directory.pictures / "confusion.png"
    _draw_confusion(run, split, confusion, classes, path)
    return [*pictures, path, *draw_routing_of(run, split, run.directory.pictures, "routing", title=run.name)]


def confusion_of(run: OpenRun, samples: ImageSamples, num_classes: int) -> Tensor:
    """Returns the confusion matrix of a run, `(N, N)`.

    Raises:
        DataError: If the logits are not finite.
    """
    device = make_accelerator(run.recipe.training).device
    model = run.task.model.to(device)
    confusion = torch.zeros(num_classes, num_classes, dtype=torch.int64)
    batch_size = run.recipe.training.evaluation_batch_size
    for logits, labels in predict(model, samples, batch_size, collate=ImageSamples.collate, device=device):
        if not logits.isfinite().all():
            raise DataError(f"the network of {run.directory.path} answers with values that are not finite")
        confusion += confusion_matrix(logits.argmax(dim=1), labels, num_classes).cpu()
    return confusion


def mean_images(samples: ImageSamples, num_classes: int) -> np.ndarray:
    """Returns the mean image of each class, as brightness from 0 to 1, `(N, H, W)`; black for an empty class."""
    means = torch.zeros(num_classes, *samples.image_shape[1:], dtype=torch.float64)
    for number in range(num_classes):
        images = samples.images[samples.labels == number]
        if len(images):
            means[number] = images.double().mean(dim=(0, 1)) / 255.0
    # The brightest pixel of all is white: the mean of many shapes is dim.
    return (means / means.max().clamp_min(1e-12)).numpy()


def _draw_curve(run: OpenRun) -> list[Path]:
    from smoe.views import draw_accuracy

    key = "validation/accuracy"
    history = [record for record in run.directory.read_history() if record.get(key) is not None]
    if not history:
        return []
    paper = PUBLISHED.get(run.name)
    path = run.directory.pictures / "accuracy.png"
    draw_accuracy(history, path, keys=(key,), reference=("paper, on test", paper.mean) if paper else None)
    return [path]


def _draw_confusion(run: OpenRun, split: str, confusion: Tensor, classes: tuple[str, ...], path: Path) -> None:
    from smoe_paper.images.views import draw_confusion

    num_wrong = int(confusion.sum() - confusion.trace())
    title = f"{run.name}: {num_wrong:,} of {int(confusion.sum()):,} {split} images are mistaken"
    draw_confusion(confusion.numpy(), classes, path, title=title)


def draw_routing_of(run: OpenRun, split: str, folder: Path, stem: str, *, title: str) -> list[Path]:
    """Draws the routing of each gate over the mean images of a split; draws nothing for a network without gates.

    Args:
        run: Run, opened with the split.
        split: Split whose images are averaged.
        folder: Folder for the pictures.
        stem: Beginning of their file names.
        title: Name of the network in the titles.
    """
    from smoe.views import draw_image_routing

    samples, classes = _images_of(run, split)
    by_gate: dict[SpatialGate, dict[str, RoutedLayer]] = {}
    for name, module in run.task.model.named_modules():
        if isinstance(module, RoutedLayer):
            by_gate.setdefault(module.gate, {})[name] = module
    pictures: list[Path] = []
    for number, (gate, layers) in enumerate(by_gate.items()):
        names = list(layers)
        with torch.no_grad():
            indices = layers[names[0]].routing().indices.cpu().numpy()
        served = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        path = folder / (f"{stem}.png" if len(by_gate) == 1 else f"{stem}-{number + 1}.png")
        text = f"{title}: {gate.num_selected} of {gate.num_experts} experts at each pixel; gate of {served}"
        draw_image_routing(indices, gate.num_experts, mean_images(samples, len(classes)), classes, path, title=text)
        pictures.append(path)
    return pictures


def _images_of(run: OpenRun, split: str) -> tuple[ImageSamples, tuple[str, ...]]:
    """Returns the samples of a split and the names of their classes."""
    assert isinstance(run.recipe, ImageRecipe)
    samples = run.task.splits[split]
    assert isinstance(samples, ImageSamples)
    return samples, IMAGE_SETS[run.recipe.data.name].classes
