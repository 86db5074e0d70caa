"""Pictures of classifiers' tables; parts of their report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from smoe.diagnostics import fixed_choices, fixed_gates, similarity_colours
from smoe.reports.run_report import Places
from smoe.views import save_picture
from smoe_paper.experiments.experiment import Notify, ReportParts
from smoe_paper.experiments.runs import kept_run
from smoe_paper.experiments.stored_runs import RunStore
from smoe_paper.experiments.tables import ResultTable
from smoe_paper.experiments.task import OpenRun
from smoe_paper.images.data import ImageSamples
from smoe_paper.images.recipes import IMAGE_RECIPES, IMAGE_SETS, IMAGES


def mean_images(samples: ImageSamples, num_classes: int) -> np.ndarray:
    """The mean image of each class, as brightness from 0 to 1, `(N, H, W)`; black for an empty class."""
    means = torch.zeros(num_classes, *samples.image_shape[1:], dtype=torch.float64)
    for number in range(num_classes):
        images = samples.images[samples.labels == number]
        if len(images):
            means[number] = images.double().mean(dim=(0, 1)) / 255.0
    # The brightest pixel of all is white: the mean of many shapes is dim.
    return (means / means.max().clamp_min(1e-12)).numpy()


def draw_choices(run: OpenRun, images: np.ndarray, classes: Sequence[str], path: Path) -> list[Path]:
    """Draws the choices of each gate over the mean image of each class; like colours share experts."""
    model = run.task.model.cpu().eval()
    gates, choices = fixed_gates(model), fixed_choices(model)
    if not choices:
        return []
    figure = Figure(figsize=(1.4 * len(classes), 1.9 * len(choices)), layout="constrained")
    rows = figure.subplots(len(choices), len(classes), squeeze=False)
    for axes_row, (name, chosen) in zip(rows, choices.items(), strict=True):
        colours = similarity_colours(chosen.cpu().numpy(), gates[name].num_experts)
        for axes, image, title in zip(axes_row, images, classes, strict=True):
            axes.imshow(colours * (0.2 + 0.8 * image[..., None]), interpolation="nearest")
            axes.set(title=title, xticks=[], yticks=[])
        axes_row[0].set_ylabel(name)
    save_picture(figure, path)
    return [path]


def draw_tables(
    tables: Sequence[ResultTable], store: RunStore, runs_dir: Path, output_dir: Path, data: Path
) -> list[Path]:
    """The routing, where the weights of the run are in `runs_dir`."""
    pictures: list[Path] = []
    for name in (table.short_name for table in tables if table.short_name in IMAGE_SETS):
        run = kept_run(IMAGES.tables, IMAGE_RECIPES[f"{name}/smoe"], store, runs_dir, ("test",), root=data)
        if run is not None:
            samples, classes = _images_of(run, "test")
            means = mean_images(samples, len(classes))
            pictures += draw_choices(run, means, classes, output_dir / f"{name}-routing.png")
    return pictures


def _images_of(run: OpenRun, split: str) -> tuple[ImageSamples, tuple[str, ...]]:
    samples = run.task.splits[split]
    assert isinstance(samples, ImageSamples)
    return samples, IMAGE_SETS[run.recipe.data.name].classes


def report_parts(run: OpenRun, split: str | None, notify: Notify) -> ReportParts:
    """The images of a split; nothing without data."""
    del notify
    if split is None:
        return ReportParts()
    samples, names = _images_of(run, split)
    counts = torch.bincount(samples.labels.long(), minlength=len(names))
    title = IMAGE_SETS[run.recipe.data.name].title
    return ReportParts(
        places=Places("grid", tuple(samples.image_shape[1:])),
        baselines={"commonest class": {"accuracy": 100.0 * float(counts.max() / counts.sum())}},
        data={"images": f"{title}, {len(samples):,} of the {split} split"},
    )
