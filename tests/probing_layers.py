"""Small layers whose gate learns by probing, their parts, and batches to train them with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import smoe
from smoe.nn.probing import Probing

GRID = (6, 7)


def make_layer(num_experts: int = 4, num_selected: int = 2, seed: int = 0, **options) -> smoe.SpatialMoE2d:
    torch.manual_seed(seed)
    options = {"training_rule": "probe", "probe_window": 3, **options}
    if "gate" not in options:
        options["spatial_shape"] = GRID
    return smoe.SpatialMoE2d(1, num_experts, num_selected, **options)


def make_batches(number: int, num_channels: int = 2, size: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(size, 1, *GRID, generator=generator),
            torch.randn(size, num_channels, *GRID, generator=generator),
        )
        for _ in range(number)
    ]


def step(layer: nn.Module, x: torch.Tensor, target: torch.Tensor, factor: float = 1.0) -> None:
    (F.mse_loss(layer(x * factor), target * factor)).backward()


def gate_of(layer: smoe.SpatialMoE2d) -> smoe.TensorGate:
    assert isinstance(layer.gate, smoe.TensorGate)
    return layer.gate


def probing_of(layer: smoe.SpatialMoE2d) -> Probing:
    assert layer.gate.probing is not None
    return layer.gate.probing


def routing_of(layer: smoe.SpatialMoE2d) -> torch.Tensor:
    return layer.routing().indices
