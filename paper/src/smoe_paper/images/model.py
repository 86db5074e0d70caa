"""Makes the networks, the data and the training task of a recipe that classifies small images."""

from __future__ import annotations

import itertools

import torch

from smoe import nn
from smoe.errors import DataError
from smoe.reports.run_report import Places
from smoe.training.task import Metric, Task
from smoe_paper.baselines.layers import CoordConv2d, LocallyConnected2d
from smoe_paper.baselines.low_rank import LowRankLocal2d
from smoe_paper.experiments.experiment import SPLITS, Notify, ReportParts
from smoe_paper.experiments.task import Learning, OpenRun, assemble_task, make_gate
from smoe_paper.images import recipes
from smoe_paper.images.data import DrawnImages, ImageSamples, LabelledImages, read_images, split_training
from smoe_paper.metrics import Accuracy, MeanCrossEntropy
from smoe_paper.models import ImageClassifier


def build_model(
    model: recipes.ImageModel, learning: Learning, image_shape: tuple[int, int, int], num_classes: int
) -> ImageClassifier:
    in_channels, *sides = image_shape
    grid = (sides[0], sides[1])
    widths = (model.filters,) * model.num_layers
    if isinstance(model, recipes.WideClassifierModel):
        widths = model.widths(in_channels)
    pairs = list(itertools.pairwise((in_channels, *widths)))
    layers: list[torch.nn.Module]
    match model:
        case recipes.ConvClassifierModel() | recipes.WideClassifierModel():
            layers = [nn.GridConv2d(inputs, outputs) for inputs, outputs in pairs]
        case recipes.LocalClassifierModel():
            layers = [nn.GridConv2d(inputs, outputs) for inputs, outputs in pairs[:-1]]
            layers.append(LocallyConnected2d(*pairs[-1], spatial_shape=grid))
        case recipes.CoordConvClassifierModel():
            layers = [CoordConv2d(*pairs[0]), *(nn.GridConv2d(*pair) for pair in pairs[1:])]
        case recipes.LowRankLocalClassifierModel():
            options = {"combiner": model.combiner, "spatial_bias": model.spatial_bias, "spatial_shape": grid}
            layers = [
                LowRankLocal2d(inputs, outputs, spatial_rank=model.spatial_rank, **options) for inputs, outputs in pairs
            ]
        case recipes.SpatialMoEClassifierModel():
            layers = _spatial_moe_layers(model, learning, pairs, grid)
    return ImageClassifier(layers, widths, num_classes)


def _spatial_moe_layers(
    model: recipes.SpatialMoEClassifierModel,
    learning: Learning,
    pairs: list[tuple[int, int]],
    grid: tuple[int, int],
) -> list[torch.nn.Module]:
    num_experts = round(model.expert_ratio * model.filters)

    def new_gate() -> nn.SpatialGate:
        return make_gate(model, num_experts, model.filters, grid).requires_grad_(model.gate != "random")

    shared = new_gate()
    return [
        nn.SpatialMoE2d.from_experts(
            inputs,
            num_experts,
            model.filters,
            gate=shared if number == 0 or model.share_gates else new_gate(),
            # Batch normalisation follows and replaces a bias for each channel.
            bias="expert" if model.bias == "expert" else False,
            local_affine=model.local_affine,
            **learning._asdict(),
        )
        for number, (inputs, _) in enumerate(pairs)
    ]


def build_task(recipe: recipes.ImageRecipe, splits: tuple[str, ...] = SPLITS, notify: Notify = print) -> Task:
    del notify
    images = make_splits(recipe.data, splits)
    samples: dict[str, ImageSamples | DrawnImages] = {**images}
    if "train" in images and recipe.data.images_per_epoch is not None:
        samples["train"] = DrawnImages(images["train"], recipe.data.images_per_epoch, recipe.seed)
    image_set = recipes.IMAGE_SETS[recipe.data.name]
    num_classes = len(image_set.classes)
    metrics: list[Metric] = [Accuracy(), MeanCrossEntropy()]
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model, Learning.of(recipe), image_set.image_shape, num_classes)
    return assemble_task(recipe, model, torch.nn.CrossEntropyLoss(), metrics, samples)


def make_splits(data: recipes.ImageData, splits: tuple[str, ...]) -> dict[str, ImageSamples]:
    """The samples of each split; the first training images are the validation split."""
    image_set = recipes.IMAGE_SETS[data.name]
    if not splits:
        return {}
    if data.root is None:
        raise DataError(f"no images are named: give the folder of {image_set.title} as --data.root FOLDER")
    found: dict[str, LabelledImages] = {}
    if "train" in splits or "validation" in splits:
        training = read_images(data.name, data.root, "train")
        found |= split_training(training, image_set)
    if "test" in splits:
        found["test"] = read_images(data.name, data.root, "test")
    return {split: ImageSamples(found[split].images, found[split].labels, image_set.value_range) for split in splits}


def report_parts(run: OpenRun, split: str | None, notify: Notify) -> ReportParts:
    del notify
    if split is None:
        return ReportParts()
    samples, title = run.task.splits[split], recipes.IMAGE_SETS[run.recipe.data.name].title
    assert isinstance(samples, ImageSamples)
    counts = torch.bincount(samples.labels)
    return ReportParts(
        places=Places("grid", tuple(samples.image_shape[1:])),
        baselines={"commonest class": {"accuracy": 100.0 * float(counts.max() / counts.sum())}},
        data={"images": f"{title}, {len(samples):,} of the {split} split"},
    )
