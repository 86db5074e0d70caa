"""Makes the networks, the data and the training task of a heat recipe."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from smoe import nn
from smoe.training import to_plain
from smoe.training.task import Task
from smoe_paper.baselines.layers import (
    CondConv2d,
    ConvGate,
    CoordConv2d,
    CoordConv3Gate,
    CoordConvGate,
    LinearGate,
    LocallyConnected2d,
    LocallyConnectedGate,
)
from smoe_paper.baselines.low_rank import LowRankLocal2d
from smoe_paper.baselines.patch_moe import patch_moe_loss
from smoe_paper.baselines.routing_losses import ScoreGate
from smoe_paper.experiments.experiment import SPLITS, Notify
from smoe_paper.experiments.task import Learning, assemble_task
from smoe_paper.heat import recipes
from smoe_paper.heat.data import diffusion_stencil, make_region_map, make_split
from smoe_paper.metrics import MeanAbsoluteError, MeanSquaredError, PercentWithin
from smoe_paper.models import ConvNet, FullyConnectedNet, SpatialMoENet, VisionTransformer


def build_model(
    model: recipes.HeatModel, learning: Learning, region_map: np.ndarray, diffusivities: Sequence[float]
) -> torch.nn.Module:
    grid = (region_map.shape[0], region_map.shape[1])
    # With so few channels, the backward pass of torch's own convolutions takes 2 to 8 times as long otherwise.
    channels_last: dict[str, Any] = {"memory_format": torch.channels_last}
    match model:
        case recipes.SpatialMoEModel():
            return build_spatial_moe(model, learning, region_map, diffusivities)
        case recipes.ConvNetModel():
            net = ConvNet(_layer_maker(model), (1, *model.hidden, 1), model.residual)
            return net.to(**channels_last) if model.layer == "condconv" else net
        case recipes.LowRankLocalModel():
            layer = LowRankLocal2d(
                1, 1, model.kernel_size, spatial_rank=model.spatial_rank, combiner=model.combiner, spatial_shape=grid
            )
            return layer.to(**channels_last)
        case recipes.LocallyConnectedModel():
            return LocallyConnected2d(1, 1, model.kernel_size, spatial_shape=grid)
        case recipes.FullyConnectedModel():
            return FullyConnectedNet(grid)
        case recipes.VisionTransformerModel():
            options = {name: value for name, value in to_plain(model).items() if name != "auxiliary_weight"}
            return VisionTransformer(1, 1, grid, **options)


def build_spatial_moe(
    model: recipes.SpatialMoEModel, learning: Learning, region_map: np.ndarray, diffusivities: Sequence[float]
) -> SpatialMoENet:
    options: dict[str, Any] = {
        "gate": build_gate(model, region_map),
        "weighted": model.weighted,
        **learning._asdict(),
    }
    if model.experts == "coordconv":
        experts = CoordConv2d(1, model.num_experts, model.kernel_size)
        layer = nn.SpatialMoE(experts, model.num_experts, model.num_selected, **options)
    else:
        bias = False if model.bias == "none" else model.bias
        layer = nn.SpatialMoE2d.from_experts(
            1, model.num_experts, model.num_selected, model.kernel_size, bias=bias, **options
        )
        if model.experts_start == "true":
            _set_true_experts(layer, diffusivities)
    if model.experts_frozen:
        gate = {id(parameter) for parameter in layer.gate.parameters()}
        for parameter in layer.parameters():
            parameter.requires_grad_(id(parameter) in gate)
    return SpatialMoENet(layer)


def build_gate(model: recipes.SpatialMoEModel, region_map: np.ndarray) -> nn.SpatialGate:
    num_experts, num_selected = model.num_experts, model.num_selected
    grid = (region_map.shape[0], region_map.shape[1])
    common: dict[str, Any] = {"order": model.order}
    regions = torch.from_numpy(region_map)

    def make_tensor_gate() -> nn.TensorGate:
        if model.gate_start == "random":
            return nn.TensorGate(num_experts, num_selected, grid, init=model.gate_init, **common)
        return nn.TensorGate.from_prior(regions, num_experts, num_selected, init=model.gate_init, **common)

    makers: Mapping[str, Callable[[], nn.SpatialGate]] = {
        "tensor": make_tensor_gate,
        "factorised": lambda: nn.FactorisedGate(
            num_experts, num_selected, grid, rank=model.rank, init=model.gate_init, **common
        ),
        "conv": lambda: ConvGate(1, num_experts, num_selected, **common),
        "coordconv": lambda: CoordConvGate(1, num_experts, num_selected, **common),
        "coordconv3": lambda: CoordConv3Gate(1, num_experts, num_selected, **common),
        "lcn": lambda: LocallyConnectedGate(1, num_experts, num_selected, grid, **common),
        "linear": lambda: LinearGate(1, num_experts, num_selected, grid, **common),
        "fixed": lambda: nn.FixedGate.from_region_map(regions, num_experts, num_selected),
        "random": lambda: nn.FixedGate.random(num_experts, num_selected, grid, init=model.gate_init, order=model.order),
    }
    gate = makers[model.gate]()
    normalisation = "none" if isinstance(gate, nn.FixedGate) else model.normalisation
    if normalisation == "none" and not model.gate_noise:
        return gate
    return ScoreGate(gate, None if model.gate_noise else 0.0, normalisation)


def _layer_maker(model: recipes.ConvNetModel) -> Callable[[int, int], torch.nn.Module]:
    makers: Mapping[str, Callable[[int, int], torch.nn.Module]] = {
        "conv": partial(nn.GridConv2d, kernel_size=model.kernel_size),
        "coordconv": partial(CoordConv2d, kernel_size=model.kernel_size),
        "condconv": partial(CondConv2d, kernel_size=model.kernel_size, num_experts=model.num_experts),
    }
    return makers[model.layer]


def _set_true_experts(layer: nn.SpatialMoE2d, diffusivities: Sequence[float]) -> None:
    """Sets each region's share of the bank, the same as in `gate_start='true'`, to the stencil of that region."""
    num_experts, _, rows, columns = layer.weight.shape
    top, left = (rows - 3) // 2, (columns - 3) // 2
    shares = torch.tensor_split(torch.arange(num_experts), len(diffusivities))
    with torch.no_grad():
        layer.weight.zero_()
        for diffusivity, share in zip(diffusivities, shares, strict=True):
            stencil = torch.from_numpy(diffusion_stencil(diffusivity)).to(layer.weight)
            layer.weight[share, 0, top : top + 3, left : left + 3] = stencil


def data_checksum(data: recipes.HeatDiffusion) -> str:
    frames = make_split(data, make_region_map(data), "test", lambda _: None)
    return hashlib.sha256(frames.__getitems__(range(len(frames)))[1].numpy().tobytes()).hexdigest()


def build_task(recipe: recipes.HeatRecipe, splits: tuple[str, ...] = SPLITS, notify: Notify = print) -> Task:
    region_map = make_region_map(recipe.data)
    data = {split: make_split(recipe.data, region_map, split, notify) for split in splits}
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model, Learning.of(recipe), region_map, recipe.data.diffusivities)
    options: dict[str, Any] = {"regions": torch.from_numpy(region_map)}
    if isinstance(recipe.model, recipes.VisionTransformerModel) and recipe.model.num_experts is not None:
        options["auxiliary_loss"] = partial(patch_moe_loss, weight=recipe.model.auxiliary_weight)
    within = PercentWithin(0.01, 1e-8 * recipe.data.unit, region_map)
    return assemble_task(
        recipe,
        model,
        F.mse_loss if recipe.loss == "mse" else F.l1_loss,
        [within, MeanSquaredError(), MeanAbsoluteError()],
        data,
        **options,
    )
