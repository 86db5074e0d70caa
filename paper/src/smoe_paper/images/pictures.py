"""Pictures of classifiers: of one run, and of tables of stored runs; parts of their report."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from torch import Tensor

from smoe.errors import DataError
from smoe.nn import RoutedLayer, SpatialGate
from smoe.reports.parts import Classes, Places
from smoe.views import save_picture
from smoe_paper.charts import COLOURS, Panel, draw_grids, draw_image_routing
from smoe_paper.experiments.experiment import Notify, ReportParts, ShowOptions
from smoe_paper.experiments.runs import kept_run
from smoe_paper.experiments.stored_runs import RunStore
from smoe_paper.experiments.tables import Outcome, ResultTable, TableSet, outcomes
from smoe_paper.experiments.task import OpenRun
from smoe_paper.images.data import ImageSamples
from smoe_paper.images.recipes import IMAGE_RECIPES, IMAGE_SETS, PUBLISHED
from smoe_paper.metrics import confusion_matrix

# Above this number of classes the cells have no room for numbers, and the axes none for names.
_MAX_WRITTEN = 20


def draw_confusion(confusion: np.ndarray, classes: Sequence[str], path: str | Path, *, title: str) -> None:
    """Draw the confusion matrix, and the share of errors of each class."""
    num_classes = len(classes)
    is_written = num_classes <= _MAX_WRITTEN
    figure = Figure(figsize=(12.5, 5.9) if is_written else (13.5, 7.5), layout="constrained")
    figure.suptitle(title, fontsize=13, fontweight="bold")
    layout = figure.add_gridspec(1, 2, width_ratios=[1.5, 1.0])

    axes = figure.add_subplot(layout[0, 0])
    mistakes = confusion.astype(np.float64)
    np.fill_diagonal(mistakes, np.nan)
    most = max(float(np.nanmax(mistakes)) if num_classes > 1 else 1.0, 2.0)
    # Correct ones are some hundred times as many and would leave one colour for all mistakes.
    shown = np.ma.masked_where(~(mistakes > 0), mistakes)
    image = axes.imshow(shown, cmap="YlOrRd", norm=LogNorm(1.0, most))
    if not is_written:
        figure.colorbar(image, ax=axes, shrink=0.8, label="mistakes")
    axes.set_xlabel("taken for")
    axes.set_ylabel("class")
    axes.set_title("what is taken for what (right ones in grey)", fontsize=11)
    if is_written:
        for (row, column), count in np.ndenumerate(confusion):
            if count:
                colour = "0.6" if row == column else "white" if np.log(count) > 0.6 * np.log(most) else "black"
                axes.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=8.5)
        axes.set_xticks(range(num_classes), list(classes), rotation=40, ha="right")
        axes.set_yticks(range(num_classes), list(classes))

    axes = figure.add_subplot(layout[0, 1])
    counts = confusion.sum(axis=1)
    errors = 100.0 * np.divide(counts - np.diag(confusion), counts, out=np.zeros(num_classes), where=counts > 0)
    overall = 100.0 * (1.0 - np.trace(confusion) / confusion.sum())
    axes.barh(range(num_classes), errors, color=COLOURS[0], height=0.75)
    axes.axvline(overall, color="0.35", linestyle=(0, (5, 3)), linewidth=1.3)
    axes.set_ylim(num_classes - 0.5, -0.5)
    if is_written:
        axes.set_yticks(range(num_classes), list(classes))
        for number, error in enumerate(errors):
            axes.text(error, number, f" {error:.2f}", va="center", fontsize=9)
        axes.margins(x=0.15)
    axes.set_xlabel("errors, in %")
    axes.set_title(f"errors of each class (of all images: {overall:.2f} %, dashed)", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    save_picture(figure, path)


def draw_run(run: OpenRun, options: ShowOptions) -> list[Path]:
    """The accuracy by epoch, the mistakes, and the routing over the mean image of each class."""
    samples, classes = _images_of(run, options.split)
    confusion = confusion_of(run, options.split, len(classes))
    paper = PUBLISHED.get(run.name)
    pictures = run.draw_curve("validation/accuracy", reference=("paper, on test", paper.mean) if paper else None)
    pictures.append(run.directory.pictures / "confusion.png")
    num_wrong = int(confusion.sum() - confusion.trace())
    title = f"{run.name}: {num_wrong:,} of {int(confusion.sum()):,} {options.split} images are mistaken"
    draw_confusion(confusion.numpy(), classes, pictures[-1], title=title)
    means = mean_images(samples, len(classes))
    return [*pictures, *draw_gates(run, means, classes, run.directory.pictures / "routing")]


def confusion_of(run: OpenRun, split: str, num_classes: int) -> Tensor:
    """The confusion matrix of a run, `(N, N)`."""
    confusion = torch.zeros(num_classes, num_classes, dtype=torch.int64)
    for logits, labels in run.predict(split):
        if not logits.isfinite().all():
            raise DataError(f"the network of {run.directory.path} answers with values that are not finite")
        confusion += confusion_matrix(logits.argmax(dim=1), labels, num_classes).cpu()
    return confusion


def mean_images(samples: ImageSamples, num_classes: int) -> np.ndarray:
    """The mean image of each class, as brightness from 0 to 1, `(N, H, W)`; black for an empty class."""
    means = torch.zeros(num_classes, *samples.image_shape[1:], dtype=torch.float64)
    for number in range(num_classes):
        images = samples.images[samples.labels == number]
        if len(images):
            means[number] = images.double().mean(dim=(0, 1)) / 255.0
    # The brightest pixel of all is white: the mean of many shapes is dim.
    return (means / means.max().clamp_min(1e-12)).numpy()


def draw_gates(run: OpenRun, images: np.ndarray, classes: Sequence[str], stem: Path, title: str = "") -> list[Path]:
    """Draws the routing of each gate over images of classes; nothing for a network without gates."""
    by_gate: dict[SpatialGate, dict[str, RoutedLayer]] = {}
    for name, module in run.task.model.named_modules():
        if isinstance(module, RoutedLayer):
            by_gate.setdefault(module.gate, {})[name] = module
    pictures: list[Path] = []
    for gate, layers in by_gate.items():
        first, *others = layers
        with torch.no_grad():
            indices = layers[first].routing().indices.cpu().numpy()
        shown = images
        if images.shape[1:] != indices.shape[1:]:
            resized = F.interpolate(torch.from_numpy(images)[None], indices.shape[1:], mode="bilinear", antialias=True)
            shown = resized[0].clamp(0.0, 1.0).numpy()
        path = stem.with_name(f"{stem.name}.png" if len(by_gate) == 1 else f"{stem.name}-{first}.png")
        served = f"{first} to {others[-1]}" if others else first
        text = f"{title or run.name}: {gate.num_selected} of {gate.num_experts} experts at each pixel; gate of {served}"
        draw_image_routing(indices, gate.num_experts, shown, classes[: len(shown)], path, title=text)
        pictures.append(path)
    return pictures


def _images_of(run: OpenRun, split: str) -> tuple[ImageSamples, tuple[str, ...]]:
    samples = run.task.splits[split]
    assert isinstance(samples, ImageSamples)
    return samples, IMAGE_SETS[run.recipe.data.name].classes


def draw_tables(
    table_set: TableSet, tables: Sequence[ResultTable], store: RunStore, runs_dir: Path, output_dir: Path, data: Path
) -> list[Path]:
    """Errors by class, and the routing of an SMoE whose weights are in `runs_dir`, for each image set."""
    pictures: list[Path] = []
    for table in tables:
        name = table.short_name
        if name not in IMAGE_SETS:
            continue
        pictures += _draw_errors(table_set, table, name, store, output_dir / f"{name}-errors.png")
        run = kept_run(table_set, IMAGE_RECIPES[f"{name}/smoe"], store, runs_dir, ("test",), root=data)
        if run is not None:
            samples, classes = _images_of(run, "test")
            means = mean_images(samples, len(classes))
            pictures += draw_gates(run, means, classes, output_dir / f"{name}-routing", f"{name}/smoe")
    return pictures


def _draw_errors(table_set: TableSet, table: ResultTable, name: str, store: RunStore, path: Path) -> Iterator[Path]:
    classes = IMAGE_SETS[name].classes
    found = {row.label: outcomes(table_set, row, store) for row in table.rows}
    # Not all models were trained at the same scales: the label contains the scale.
    errors = {
        f"{label} ({outcome.scale.name})": _errors(outcome, len(classes))
        for label, all_of_it in found.items()
        for outcome in all_of_it
    }
    if not errors:
        return
    panel = Panel("errors on the test images of each class, in %", np.array(list(errors.values())), palette="YlOrRd")
    draw_grids([panel], list(errors), classes, path, row_title="", column_title="class")
    yield path


def _errors(outcome: Outcome, num_classes: int) -> list[float]:
    values = (outcome.values(f"error/class_{number}") for number in range(num_classes))
    return [statistics.fmean(seeds) if seeds else float("nan") for seeds in values]


def report_parts(run: OpenRun, split: str | None, notify: Notify) -> ReportParts:
    """The classes of a split with their mean images and the confusion matrix; nothing without data."""
    del notify
    if split is None:
        return ReportParts()
    samples, names = _images_of(run, split)
    counts = torch.bincount(samples.labels.long(), minlength=len(names))
    confusion = confusion_of(run, split, len(names))
    title = IMAGE_SETS[run.recipe.data.name].title
    return ReportParts(
        places=Places("grid", tuple(samples.image_shape[1:])),
        baselines={"commonest class": {"accuracy": 100.0 * float(counts.max() / counts.sum())}},
        classes=Classes(names, mean_images(samples, len(names)), confusion.numpy()),
        data={"images": f"{title}, {len(samples):,} of the {split} split"},
    )
