"""Makes the classifier of a recipe."""

from __future__ import annotations

import itertools

import torch

from smoe import nn
from smoe_paper.baselines.layers import CoordConv2d, LocallyConnected2d
from smoe_paper.baselines.low_rank import LowRankLocal2d
from smoe_paper.experiments.gated_layers import Learning, make_gate
from smoe_paper.images.model_options import (
    ConvClassifierModel,
    CoordConvClassifierModel,
    ImageModel,
    LocalClassifierModel,
    LowRankLocalClassifierModel,
    SpatialMoEClassifierModel,
    WideClassifierModel,
)
from smoe_paper.models import ImageClassifier


def build_model(
    model: ImageModel, learning: Learning, image_shape: tuple[int, int, int], num_classes: int
) -> ImageClassifier:
    """Returns the network of a recipe.

    Args:
        model: Options of the network.
        learning: How the routing of SMoE layers learns.
        image_shape: Channels, rows and columns of an image.
        num_classes: Number of classes.
    """
    in_channels, *sides = image_shape
    grid = (sides[0], sides[1])
    widths = (model.filters,) * model.num_layers
    if isinstance(model, WideClassifierModel):
        widths = model.widths(in_channels)
    pairs = list(itertools.pairwise((in_channels, *widths)))
    layers: list[torch.nn.Module]
    match model:
        case ConvClassifierModel() | WideClassifierModel():
            layers = [nn.GridConv2d(inputs, outputs) for inputs, outputs in pairs]
        case LocalClassifierModel():
            layers = [nn.GridConv2d(inputs, outputs) for inputs, outputs in pairs[:-1]]
            layers.append(LocallyConnected2d(*pairs[-1], spatial_shape=grid))
        case CoordConvClassifierModel():
            layers = [
                CoordConv2d(*pair) if number == 0 or model.coordinates == "all" else nn.GridConv2d(*pair)
                for number, pair in enumerate(pairs)
            ]
        case LowRankLocalClassifierModel():
            options = {"combiner": model.combiner, "spatial_bias": model.spatial_bias, "spatial_shape": grid}
            layers = [
                LowRankLocal2d(inputs, outputs, spatial_rank=model.spatial_rank, **options) for inputs, outputs in pairs
            ]
        case SpatialMoEClassifierModel():
            layers = _spatial_moe_layers(model, learning, pairs, grid)
    return ImageClassifier(layers, widths, num_classes)


def _spatial_moe_layers(
    model: SpatialMoEClassifierModel,
    learning: Learning,
    pairs: list[tuple[int, int]],
    grid: tuple[int, int],
) -> list[torch.nn.Module]:
    """Makes SMoE layers on one grid, which can share a gate."""
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
