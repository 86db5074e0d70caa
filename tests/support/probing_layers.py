"""Small layers whose gate learns by probing, their parts, and batches to train them with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import smoe
from smoe.nn._probing import ProbingLearner, ProbingMemory
from smoe.ops._probing import Challenge
from smoe.rules import Rule

GRID = (6, 7)


def make_layer(
    num_experts: int = 4, num_selected: int = 2, seed: int = 0, rule: Rule | str = "probe(window=3)", **options
) -> smoe.SpatialMoE2d:
    torch.manual_seed(seed)
    if "gate" not in options:
        options = {"spatial_shape": GRID, "order": "score", **options}
    return smoe.SpatialMoE2d.from_experts(1, num_experts, num_selected, rule=rule, **options)


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


def memory_of(layer: smoe.SpatialMoE2d) -> ProbingMemory:
    assert isinstance(layer.gate.memory, ProbingMemory)
    return layer.gate.memory


def curvature_of(layer: smoe.SpatialMoE2d) -> torch.Tensor:
    assert isinstance(layer._learner, ProbingLearner)
    return layer._learner.curvature


def challenge_of(layer: smoe.SpatialMoE2d) -> Challenge:
    """The challenge of the present window, with the pixels of the grid: experts `(1, H, W)` and slots `(H, W)`."""
    experts, slots = memory_of(layer).challenge(gate_of(layer), layer.gate())
    return Challenge(experts[0].long().unflatten(1, GRID), slots.unflatten(0, GRID))


def routing_of(layer: smoe.SpatialMoE2d) -> torch.Tensor:
    return layer.routing().indices
