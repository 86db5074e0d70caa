"""SMoE layers in the networks of recipes: converted from convolutions, and how they start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from smoe import nn
from smoe.experiments.gate_options import GateOptions
from smoe.options import RoutingTraining

Start = Callable[[nn.SpatialMoE2d], None]


def convert_net(
    net: torch.nn.Module,
    gates: GateOptions,
    routing: RoutingTraining,
    start: Start,
    *,
    example_input: torch.Tensor,
    share_gates: bool,
    **options: Any,
) -> torch.nn.Module:
    """The network with its 3x3 convolutions replaced.

    Args:
        net: of convolutions.
        gates: of the layers.
        routing: how it learns.
        start: draws the weights of a layer.
        example_input: from which the grids follow.
        share_gates: one gate for all layers of the same grid and numbers of experts.
        **options: further ones of `smoe.convert`.
    """
    converted = nn.convert(
        net,
        example_input=example_input,
        num_experts=gates.expert_ratio,
        share_gates=share_gates,
        gate_init=gates.gate_init,
        correlation_length=gates.correlation_length,
        order=gates.order,
        training=routing,
        **options,
    )
    for layer in converted.modules():
        if isinstance(layer, nn.SpatialMoE2d):
            start_layer(layer, gates, start)
    return converted


def start_layer(layer: nn.SpatialMoE2d, gates: GateOptions, start: Start) -> None:
    """Draws the weights of a layer; its gate stays as it is if it is to be random."""
    start(layer)
    if gates.gate == "random":
        layer.gate.requires_grad_(False)
