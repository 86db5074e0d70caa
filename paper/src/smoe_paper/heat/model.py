"""Makes the networks, the data and the training task of a heat recipe."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from smoe import nn
from smoe._plain import to_plain
from smoe.training.task import Task
from smoe_paper.baselines.gates import ConvGate, CoordConv3Gate, CoordConvGate, LinearGate, LocallyConnectedGate
from smoe_paper.baselines.layers import CondConv2d, CoordConv2d, LocallyConnected2d
from smoe_paper.baselines.low_rank import LowRankLocal2d
from smoe_paper.baselines.patch_moe import patch_moe_loss
from smoe_paper.experiments.experiment import SPLITS, Notify
from smoe_paper.experiments.gated_layers import Learning
from smoe_paper.experiments.task import DryTask, assemble_task
from smoe_paper.heat.data import (
    HeatPairs,
    diffusion_stencil,
    draw_initial_states,
    grow_region_map,
    load_frames,
    load_region_map,
    save_frames,
    simulate_heat,
)
from smoe_paper.heat.recipes import (
    ConvNetModel,
    FullyConnectedModel,
    HeatDiffusion,
    HeatModel,
    HeatRecipe,
    LocallyConnectedModel,
    LowRankLocalModel,
    SpatialMoEModel,
    VisionTransformerModel,
)
from smoe_paper.metrics import MeanAbsoluteError, MeanSquaredError, PercentWithin
from smoe_paper.models import ConvNet, FullyConnectedNet, SpatialMoENet, VisionTransformer


def build_model(
    model: HeatModel, learning: Learning, region_map: np.ndarray, diffusivities: Sequence[float]
) -> torch.nn.Module:
    """Returns the network of a recipe; it maps one field to one field.

    Args:
        model: Options of the network.
        learning: How the routing of an SMoE learns.
        region_map: Map of regions, `(H, W)`. It gives the grid of networks that need one, and the true routing.
        diffusivities: Diffusivity of each region type, for experts that start as the true stencils.
    """
    grid = (region_map.shape[0], region_map.shape[1])
    # With so few channels, the backward pass of torch's own convolutions takes 2 to 8 times as long otherwise.
    channels_last: dict[str, Any] = {"memory_format": torch.channels_last}
    match model:
        case SpatialMoEModel():
            return build_spatial_moe(model, learning, region_map, diffusivities)
        case ConvNetModel():
            net = ConvNet(_layer_maker(model), (1, *model.hidden, 1))
            return net.to(**channels_last) if model.layer == "condconv" else net
        case LowRankLocalModel():
            layer = LowRankLocal2d(
                1, 1, model.kernel_size, spatial_rank=model.spatial_rank, combiner=model.combiner, spatial_shape=grid
            )
            return layer.to(**channels_last)
        case LocallyConnectedModel():
            return LocallyConnected2d(1, 1, model.kernel_size, spatial_shape=grid)
        case FullyConnectedModel():
            return FullyConnectedNet(grid)
        case VisionTransformerModel():
            options = {name: value for name, value in to_plain(model).items() if name != "auxiliary_weight"}
            return VisionTransformer(1, 1, grid, **options)


def build_spatial_moe(
    model: SpatialMoEModel, learning: Learning, region_map: np.ndarray, diffusivities: Sequence[float]
) -> SpatialMoENet:
    """Returns the one-layer SMoE network, started at random or at the truth."""
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


def build_gate(model: SpatialMoEModel, region_map: np.ndarray) -> nn.SpatialGate:
    """Returns the gate of a recipe."""
    num_experts, num_selected = model.num_experts, model.num_selected
    grid = (region_map.shape[0], region_map.shape[1])
    common: dict[str, Any] = {"normalization": model.normalization, "order": model.order}
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
    return nn.NoisyGate(gate) if model.gate_noise else gate


def build_auxiliary_loss(model: HeatModel) -> Callable[[torch.nn.Module], Tensor] | None:
    """Returns the balancing losses of a V-MoE, computed after its forward pass; None for other networks."""
    if isinstance(model, VisionTransformerModel) and model.num_experts is not None:
        return partial(patch_moe_loss, weight=model.auxiliary_weight)
    return None


def _layer_maker(model: ConvNetModel) -> Callable[[int, int], torch.nn.Module]:
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


def build_task(recipe: HeatRecipe, splits: tuple[str, ...] = SPLITS, notify: Notify = print) -> Task:
    """Makes everything that the training loop needs.

    Args:
        recipe: Recipe to train.
        splits: Data to simulate.
        notify: Receives messages about what is being simulated.
    """
    region_map = make_region_map(recipe.data)
    data = {split: make_split(recipe.data, region_map, split, notify) for split in splits}
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model, Learning.of(recipe), region_map, recipe.data.diffusivities)
    options: dict[str, Any] = {"regions": torch.from_numpy(region_map)}
    balancing_loss = build_auxiliary_loss(recipe.model)
    if balancing_loss is not None:
        options["auxiliary_loss"] = balancing_loss
    within = PercentWithin(0.01, 1e-8 * recipe.data.unit, region_map)
    return assemble_task(
        recipe,
        model,
        F.mse_loss if recipe.loss == "mse" else F.l1_loss,
        [within, MeanSquaredError(), MeanAbsoluteError()],
        data,
        HeatPairs.collate,
        **options,
    )


def make_region_map(data: HeatDiffusion) -> np.ndarray:
    """Returns the map of region types `(H, W)`, loaded or generated."""
    if data.region_map is not None:
        return load_region_map(data.region_map)
    return grow_region_map(data.spatial_shape, len(data.diffusivities), data.region_seed)


def make_split(data: HeatDiffusion, region_map: np.ndarray, split: str, notify: Notify = print) -> HeatPairs:
    """Simulates a split, or opens the frames that an earlier run stored in `cache_dir`."""
    num_runs, seed = {
        "train": (data.num_train_runs, data.train_seed),
        "validation": (data.num_validation_runs, data.validation_seed),
        "test": (data.num_test_runs, data.test_seed),
    }[split]
    what_matters = {
        "diffusivities": to_plain(data.diffusivities),
        "num_steps": data.num_steps,
        "num_runs": num_runs,
        "seed": seed,
        "region_map": hashlib.sha256(region_map.tobytes()).hexdigest(),
    }
    path = None if data.cache_dir is None else data.cache_dir / f"heat-{split}-{_digest(what_matters)}.npy"
    if path is not None and path.exists():
        return _in_unit(load_frames(path, shape=(num_runs, data.num_steps + 1, *region_map.shape)), data.unit)
    notify(f"simulating {num_runs} runs of {data.num_steps} steps ({split})")
    initial_states = draw_initial_states(region_map, num_runs, seed)
    frames = simulate_heat(initial_states, region_map, data.diffusivities, data.num_steps)
    if path is not None:
        save_frames(path, frames)
    return _in_unit(frames, data.unit)


def _in_unit(frames: np.ndarray, unit: float) -> HeatPairs:
    return HeatPairs(frames if unit == 1.0 else frames * np.float32(unit))


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def build_dry_task(recipe: HeatRecipe) -> DryTask:
    """Makes the task without simulating or reading fields."""
    rows, columns = make_region_map(recipe.data).shape
    field = (1, int(rows), int(columns))
    return DryTask(build_task(recipe, ()), field, field)
