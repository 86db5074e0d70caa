"""Makes the networks, the data and the training task of an ImageNet recipe."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from smoe import nn
from smoe.errors import DataError
from smoe.training.task import Task
from smoe_paper.baselines.low_rank import LowRankLocal2d
from smoe_paper.experiments.experiment import SPLITS, Notify
from smoe_paper.experiments.task import Learning, assemble_task, convert_net, make_added_layer
from smoe_paper.imagenet import recipes
from smoe_paper.imagenet.folders import (
    AugmentedFolderImages,
    ClassFolders,
    FolderImages,
    find_class_folders,
    hold_out,
)
from smoe_paper.metrics import Accuracy, MeanCrossEntropy
from smoe_paper.models import ResNet, start_as_torchvision


def build_model(model: recipes.ImageNetModel, learning: Learning, size: int, num_classes: int) -> torch.nn.Module:
    """The network of a recipe.

    Experts and bases start like the filters of the convolutions that they replace, with the same spread of the outputs.
    """
    width_factor = model.width_factor if isinstance(model, recipes.ResNet50Model) else 1
    net = ResNet(model.num_blocks, num_classes=num_classes, filters=model.filters, width_factor=width_factor)
    match model:
        case recipes.ResNet50Model():
            return net
        case recipes.LowRankLocalResNet50Model():
            return _make_low_rank_local(net, model, size)
        case recipes.AddedSpatialMoEResNet50Model():
            return _add_spatial_moe(net, model, learning, size)
        case recipes.SpatialMoEResNet50Model():
            return _convert(net, model, learning, size)


def _make_low_rank_local(net: ResNet, model: recipes.LowRankLocalResNet50Model, size: int) -> ResNet:
    """Replaces all 3x3 convolutions by low-rank local layers on their own output grids."""
    for change in nn.plan_conversion(net, example_input=torch.zeros(1, 3, size, size)).changes:
        parent, _, name = change.name.rpartition(".")
        old = net.get_submodule(change.name)
        assert isinstance(old, torch.nn.Conv2d)
        layer = LowRankLocal2d(
            old.in_channels,
            old.out_channels,
            spatial_rank=model.spatial_rank,
            combiner=model.combiner,
            spatial_shape=(change.spatial_shape[0], change.spatial_shape[1]),
            stride=old.stride[0],
        )
        start_as_torchvision(layer.weight, old.out_channels)
        setattr(net.get_submodule(parent), name, layer)
    return net


def _convert(net: ResNet, model: recipes.SpatialMoEResNet50Model, learning: Learning, size: int) -> torch.nn.Module:
    example = torch.zeros(1, 3, size, size)
    return convert_net(net, model, learning, _start, example_input=example, share_gates=model.share_gates)


def _add_spatial_moe(
    net: ResNet, model: recipes.AddedSpatialMoEResNet50Model, learning: Learning, size: int
) -> torch.nn.Module:
    channels, grid = _shape_after(net, net.relu if model.position == "first" else net.layer4, size)
    # Batch normalisation follows and replaces a bias for each channel.
    bias = "expert" if model.bias == "expert" else False
    layer = make_added_layer(channels, grid, model, learning, _start, bias=bias)
    added = (layer, torch.nn.BatchNorm2d(channels), torch.nn.ReLU(inplace=True))
    if model.position == "first":
        net.relu = torch.nn.Sequential(net.relu, *added)
    else:
        net.layer4.append(torch.nn.Sequential(*added))
    return net


def _shape_after(net: ResNet, place: torch.nn.Module, size: int) -> tuple[int, tuple[int, int]]:
    """The channels and the grid of a module's output."""
    shapes: list[torch.Size] = []
    hook = place.register_forward_hook(lambda *args: shapes.append(args[-1].shape))
    try:
        with torch.no_grad():
            net.eval()(torch.zeros(1, 3, size, size))
    finally:
        hook.remove()
        net.train()
    _, channels, rows, columns = shapes[0]
    return channels, (rows, columns)


def _start(layer: nn.SpatialMoE2d) -> None:
    # The output channels, and so the fan-out, are those of the replaced convolution.
    start_as_torchvision(layer.weight, layer.gate.num_selected)


def build_task(recipe: recipes.ImageNetRecipe, splits: tuple[str, ...] = SPLITS, notify: Notify = print) -> Task:
    if recipe.data.root is None:
        raise DataError("no images are named: give the folder that holds train and val as --data.root FOLDER")
    whole = find_class_folders(recipe.data.root / "train")
    samples = make_splits(recipe, whole, splits)
    for split, images in samples.items():
        notify(f"{split}: {len(images):,} images of {len(whole.classes):,} classes")
    return make_task(recipe, len(whole.classes), samples)


def make_splits(
    recipe: recipes.ImageNetRecipe, whole: ClassFolders, splits: tuple[str, ...]
) -> dict[str, FolderImages]:
    """The samples of each split: `val` is the test split, and the validation split is a part of `train`."""
    data = recipe.data
    views = (data.resize, data.crop)
    made: dict[str, FolderImages] = {}
    if "test" in splits or not data.held_out_per_class:
        made["test"] = FolderImages(find_class_folders(whole.folder.with_name("val"), whole.classes), *views)
    kept, held = hold_out(whole, data.held_out_per_class)
    made["train"] = AugmentedFolderImages(kept, data.train_size, recipe.seed)
    made["validation"] = FolderImages(held, *views) if data.held_out_per_class else made["test"]
    return {split: made[split] for split in splits}


def make_task(
    recipe: recipes.ImageNetRecipe, num_classes: int = 1000, samples: Mapping[str, FolderImages] | None = None
) -> Task:
    data = recipe.data
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model, Learning.of(recipe), data.train_size, num_classes)
    knows_grid = any(isinstance(module, (nn.RoutedLayer, LowRankLocal2d)) for module in model.modules())
    is_other_grid = knows_grid and data.crop != data.train_size
    return assemble_task(
        recipe,
        model,
        torch.nn.CrossEntropyLoss(label_smoothing=0.1),
        [Accuracy((1, 5)), MeanCrossEntropy()],
        samples,
        for_evaluation=partial(for_size, size=data.crop) if is_other_grid else None,
    )


def for_size(model: torch.nn.Module, size: int) -> torch.nn.Module:
    """A copy of a network for images of another size, with its gates and tables taken to it."""
    device = next(model.parameters()).device
    return nn.interpolate_grids(model, example_input=torch.zeros(1, 3, size, size, device=device))
