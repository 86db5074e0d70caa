"""Makes the network of a weather recipe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from smoe import nn
from smoe._plain import to_plain
from smoe_paper.baselines.layers import LearnedChannels
from smoe_paper.baselines.low_rank import LowRankLocal2d
from smoe_paper.experiments.gated_layers import Learning, convert_net, make_gate, start_layer
from smoe_paper.models import VisionTransformer, WeatherResNet
from smoe_paper.models.weather_resnet import ConvBlock, globe_conv, glorot_uniform_
from smoe_paper.weather.model_options import (
    AddedSpatialMoEModel,
    LocatedResNetModel,
    LowRankLocalResNetModel,
    ResNetModel,
    SpatialMoEResNetModel,
    WeatherModel,
    WeatherViTModel,
)

_Gated = AddedSpatialMoEModel | SpatialMoEResNetModel
_AnyResNet = ResNetModel | LocatedResNetModel | LowRankLocalResNetModel | _Gated


@dataclass(frozen=True)
class Shape:
    """Shape of a network's inputs and outputs.

    Attributes:
        in_channels: Number of input fields.
        out_channels: Number of forecast fields.
        grid: Rows and columns of the fields.
    """

    in_channels: int
    out_channels: int
    grid: tuple[int, int]


def build_model(
    model: WeatherModel, learning: Learning, shape: Shape, land: torch.Tensor | None = None
) -> torch.nn.Module:
    """Returns the network of a recipe.

    Args:
        model: Options of the network.
        learning: How the routing of SMoE layers learns.
        shape: Shape of the inputs and outputs.
        land: Fraction of land `(H, W)`, for the land-sea prior.
    """
    match model:
        case WeatherViTModel():
            return VisionTransformer(shape.in_channels, shape.out_channels, shape.grid, **to_plain(model))
        case ResNetModel():
            return _make_resnet(model, shape)
        case LocatedResNetModel():
            return _make_located(model, shape)
        case LowRankLocalResNetModel():
            return _make_resnet(model, shape, make_conv=partial(_make_low_rank_local, model=model, grid=shape.grid))
        case AddedSpatialMoEModel():
            return _add_spatial_moe(_make_resnet(model, shape), model, learning, shape, land)
        case SpatialMoEResNetModel():
            return _convert(_make_resnet(model, shape), model, learning, shape, land)


def _make_resnet(model: _AnyResNet, shape: Shape, **options: Any) -> WeatherResNet:
    return WeatherResNet(
        shape.in_channels,
        shape.out_channels,
        filters=model.filters,
        num_blocks=model.num_blocks,
        dropout=model.dropout,
        positive=model.positive,
        **options,
    )


def _make_located(model: LocatedResNetModel, shape: Shape) -> torch.nn.Module:
    def make_conv(in_channels: int, out_channels: int) -> torch.nn.Module:
        conv = globe_conv(in_channels, out_channels)
        return torch.nn.Sequential(conv, nn.LocalAffine(out_channels, shape.grid)) if model.local_affine else conv

    if not model.learned_channels:
        return _make_resnet(model, shape, make_conv=make_conv)
    seen = replace(shape, in_channels=shape.in_channels + model.learned_channels)
    appended = LearnedChannels(model.learned_channels, shape.grid)
    return torch.nn.Sequential(appended, _make_resnet(model, seen, make_conv=make_conv))


def _make_low_rank_local(
    in_channels: int, out_channels: int, model: LowRankLocalResNetModel, grid: tuple[int, int]
) -> LowRankLocal2d:
    # The layer's own bias, one for each pixel and shared by all filters, replaces the convolution's.
    layer = LowRankLocal2d(
        in_channels,
        out_channels,
        spatial_rank=model.spatial_rank,
        combiner=model.combiner,
        spatial_shape=grid,
        spatial_bias=True,
        padding_mode="longitude",
    )
    glorot_uniform_(layer.weight, out_channels)
    return layer


def _convert(
    net: WeatherResNet, model: SpatialMoEResNetModel, learning: Learning, shape: Shape, land: torch.Tensor | None
) -> torch.nn.Module:
    """Replaces all 3x3 convolutions but the output's by SMoE layers with biases."""
    return convert_net(
        net,
        model,
        learning,
        _start,
        example_input=torch.zeros(1, shape.in_channels, *shape.grid),
        share_gates=model.share_gates,
        names="blocks.*",
        prior=_prior(model, land),
        prior_strength=model.prior_strength,
    )


def _add_spatial_moe(
    net: WeatherResNet, model: AddedSpatialMoEModel, learning: Learning, shape: Shape, land: torch.Tensor | None
) -> torch.nn.Module:
    channels = shape.out_channels if model.position == "output" else model.filters
    num_experts = round(model.expert_ratio * channels)
    gate = make_gate(model, num_experts, channels, shape.grid, _prior(model, land), model.prior_strength)
    layer = nn.SpatialMoE2d.from_experts(
        channels,
        num_experts,
        channels,
        padding_mode="longitude",
        gate=gate,
        bias=model.bias,
        local_affine=model.local_affine,
        **learning._asdict(),
    )
    start_layer(layer, model, _start)
    # Inside the network's own parts, so that a ReLU at its end stays there.
    if model.position == "output":
        net.head = torch.nn.Sequential(net.head, layer)
    elif model.position == "first":
        net.stem = torch.nn.Sequential(net.stem, ConvBlock(layer, channels, model.dropout))
    else:
        net.blocks.append(ConvBlock(layer, channels, model.dropout))
    return net


def _start(layer: nn.SpatialMoE2d) -> None:
    # The output channels, and so the fan-out, are those of the replaced convolution.
    glorot_uniform_(layer.weight, layer.num_selected)


def _prior(model: _Gated, land: torch.Tensor | None) -> torch.Tensor | None:
    if model.prior == "none":
        return None
    if land is None:
        raise ValueError("prior='land_sea' needs the fraction of land on the grid")
    return land
