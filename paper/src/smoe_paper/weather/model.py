"""Makes the networks, the data and the training task of a weather recipe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from smoe import nn
from smoe.training import to_plain
from smoe.training.task import MeanLoss, Metric, Task
from smoe_paper.baselines.layers import LearnedChannels
from smoe_paper.baselines.low_rank import LowRankLocal2d
from smoe_paper.experiments.experiment import SPLITS, Notify
from smoe_paper.experiments.task import Learning, assemble_task, convert_net, make_added_layer
from smoe_paper.losses import LatitudeWeightedMSE
from smoe_paper.metrics import LatitudeWeightedRMSE
from smoe_paper.models import ConvBlock, VisionTransformer, WeatherResNet, globe_conv, glorot_uniform_
from smoe_paper.weather import recipes
from smoe_paper.weather.store import WeatherSamples, WeatherStore, weekly_means


@dataclass(frozen=True)
class Setting:
    """Properties of the data on which a network depends."""

    in_channels: int
    out_channels: int
    grid: tuple[int, int]
    latitude: tuple[float, ...] = ()
    land: torch.Tensor | None = None


def setting_of(data: recipes.WeatherData, store: WeatherStore) -> Setting:
    land = torch.from_numpy(np.array(store.raw_constant("lsm"))) if "lsm" in store.constant_names else None
    num_fields = len(data.context_hours) * len(data.inputs or store.channels)
    num_others = len(store.constant_names if data.constants is None else data.constants)
    num_others += len(data.targets) if data.weekly_means else 0
    return Setting(num_fields + num_others, len(data.targets), store.grid.shape, store.grid.latitude, land)


_Gated = recipes.AddedSpatialMoEModel | recipes.SpatialMoEResNetModel
_AnyResNet = recipes.ResNetModel | recipes.LocatedResNetModel | recipes.LowRankLocalResNetModel | _Gated


def build_model(model: recipes.WeatherModel, learning: Learning, setting: Setting) -> torch.nn.Module:
    match model:
        case recipes.WeatherViTModel():
            return VisionTransformer(setting.in_channels, setting.out_channels, setting.grid, **to_plain(model))
        case recipes.ResNetModel():
            return _make_resnet(model, setting)
        case recipes.LocatedResNetModel():
            return _make_located(model, setting)
        case recipes.LowRankLocalResNetModel():
            return _make_resnet(model, setting, make_conv=partial(_make_low_rank_local, model=model, grid=setting.grid))
        case recipes.AddedSpatialMoEModel():
            return _add_spatial_moe(_make_resnet(model, setting), model, learning, setting)
        case recipes.SpatialMoEResNetModel():
            return _convert(_make_resnet(model, setting), model, learning, setting)


def _make_resnet(model: _AnyResNet, setting: Setting, **options: Any) -> WeatherResNet:
    return WeatherResNet(
        setting.in_channels,
        setting.out_channels,
        filters=model.filters,
        num_blocks=model.num_blocks,
        dropout=model.dropout,
        **options,
    )


def _make_located(model: recipes.LocatedResNetModel, setting: Setting) -> torch.nn.Module:
    def make_conv(in_channels: int, out_channels: int) -> torch.nn.Module:
        conv = globe_conv(in_channels, out_channels)
        return torch.nn.Sequential(conv, nn.LocalAffine(out_channels, setting.grid)) if model.local_affine else conv

    if not model.learned_channels:
        return _make_resnet(model, setting, make_conv=make_conv)
    seen = replace(setting, in_channels=setting.in_channels + model.learned_channels)
    appended = LearnedChannels(model.learned_channels, setting.grid)
    return torch.nn.Sequential(appended, _make_resnet(model, seen, make_conv=make_conv))


def _make_low_rank_local(
    in_channels: int, out_channels: int, model: recipes.LowRankLocalResNetModel, grid: tuple[int, int]
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
    net: WeatherResNet, model: recipes.SpatialMoEResNetModel, learning: Learning, setting: Setting
) -> torch.nn.Module:
    """Replaces all 3x3 convolutions but the output's by SMoE layers with biases."""
    return convert_net(
        net,
        model,
        learning,
        _start,
        example_input=torch.zeros(1, setting.in_channels, *setting.grid),
        share_gates=model.share_gates,
        names="blocks.*",
        prior=_prior(model, setting.land),
    )


def _add_spatial_moe(
    net: WeatherResNet, model: recipes.AddedSpatialMoEModel, learning: Learning, setting: Setting
) -> torch.nn.Module:
    layer = make_added_layer(
        model.filters,
        setting.grid,
        model,
        learning,
        _start,
        bias=model.bias,
        prior=_prior(model, setting.land),
        padding_mode="longitude",
    )
    block = ConvBlock(layer, model.filters, model.dropout)
    if model.position == "first":
        net.stem = torch.nn.Sequential(net.stem, block)
    else:
        net.blocks.append(block)
    return net


def _start(layer: nn.SpatialMoE2d) -> None:
    # The output channels, and so the fan-out, are those of the replaced convolution.
    glorot_uniform_(layer.weight, layer.gate.num_selected)


def _prior(model: _Gated, land: torch.Tensor | None) -> torch.Tensor | None:
    if model.prior == "none":
        return None
    if land is None:
        raise ValueError("prior='land_sea' needs the fraction of land on the grid")
    return land


def build_task(recipe: recipes.WeatherRecipe, splits: tuple[str, ...] = SPLITS, notify: Notify = print) -> Task:
    store = WeatherStore.open_named(recipe.data.store)
    samples = {split: make_split(recipe, store, split, notify) for split in splits}
    setting = setting_of(recipe.data, store)
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model, Learning.of(recipe), setting)
    if recipe.data.weekly_means:
        model = AddedLast(model)
    loss = LatitudeWeightedMSE(setting.latitude)
    regions = None if setting.land is None else (setting.land > 0.5).int()
    metrics = [MeanLoss(loss), *make_scores(recipe.data.targets, store)]
    return assemble_task(recipe, model, loss, metrics, samples, regions=regions)


class AddedLast(torch.nn.Module):
    """A network whose output is added to the last channels of its input."""

    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        output = self.net(input)
        return output + input[:, -output.shape[1] :]


def make_split(
    recipe: recipes.WeatherRecipe, store: WeatherStore, split: str, notify: Notify = print
) -> WeatherSamples:
    data = recipe.data
    years = getattr(data, f"{split}_years")
    samples = WeatherSamples(
        store,
        years,
        targets=data.targets,
        inputs=data.inputs,
        constants=data.constants,
        context_hours=data.context_hours,
        lead_hours=data.lead_hours,
        start_every_hours=data.test_every_hours if split == "test" else data.start_every_hours,
        skip_hours=data.skip_hours if split == "train" else 0,
        means=weekly_means(store, data.targets, data.train_years) if data.weekly_means else None,
    )
    store.tell_missing_years(split, years, notify)
    return samples


def make_scores(targets: tuple[str, ...], store: WeatherStore) -> list[Metric]:
    scales = [float(store.std[index]) for index in store.channel_indices(targets)]
    return [LatitudeWeightedRMSE(targets, store.grid.latitude, scales)]
