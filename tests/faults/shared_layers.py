"""Layers of every geometry and gate, which threads share and processes inherit."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

import smoe

_RING = [[0, 1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 0]]
_STAR = [[0, 0, 0, 0, 1, 2, 3, 4], [4, 5, 6, 7, 0, 0, 0, 0]]


class Shared(NamedTuple):
    """A layer and what it is called with.

    Attributes:
        name: Name of the layer.
        layer: The layer.
        inputs: Several tuples of arguments.
    """

    name: str
    layer: nn.Module
    inputs: list[tuple[Tensor, ...]]


def make_layers() -> list[Shared]:
    """One layer for each geometry, kind of gate and way to freeze."""
    grid, num_experts = (9, 7), 6
    gates: dict[str, Callable[[], smoe.SpatialGate]] = {
        "tensor gate": lambda: smoe.TensorGate(num_experts, 2, grid),
        "convolutional gate": lambda: smoe.ConvGate(3, num_experts, 2),
        "factorised gate": lambda: smoe.FactorisedGate(num_experts, 2, grid, rank=3),
        "coarse gate": lambda: smoe.CoarseGate(num_experts, 2, grid, factor=2),
        "linear gate": lambda: smoe.LinearGate(3, num_experts, 2, grid),
    }
    layers = [(name, smoe.SpatialMoE2d(3, num_experts, 2, gate=make()), (3, *grid)) for name, make in gates.items()]
    layers += [("a shared gate", smoe.SpatialMoE2d(3, num_experts, 2, gate=layers[0][1].gate), (3, *grid))]
    for rule in ("rc", "probe", "straight_through"):
        layers.append((rule, smoe.SpatialMoE2d(3, num_experts, 2, spatial_shape=grid, rule=rule), (3, *grid)))
    frozen = smoe.freeze(smoe.SpatialMoE2d(3, num_experts, 2, spatial_shape=grid))
    others = [
        ("families", smoe.SpatialMoE2d(3, num_experts, 2, expert_channels=4, spatial_shape=grid), (3, *grid)),
        ("frozen", frozen, (3, *grid)),
        ("line", smoe.SpatialMoE1d(3, num_experts, 2, spatial_shape=17), (3, 17)),
        ("volume", smoe.SpatialMoE3d(3, num_experts, 2, spatial_shape=(4, 5, 6)), (3, 4, 5, 6)),
        ("HEALPix", smoe.HEALPixMoE(3, num_experts, 2, nside=4), (3, 12 * 16)),
    ]
    shared = [
        Shared(name, layer, [(torch.randn(2, *shape),) for _ in range(3)]) for name, layer, shape in [*layers, *others]
    ]
    fields = [torch.randn(2, 8, 3) for _ in range(3)]
    # Two graphs in turn, so that what the layer keeps of a graph is replaced all the time.
    edges = [torch.tensor(_RING), torch.tensor(_STAR)]
    graphs = smoe.GraphMoE(3, num_experts, 2, num_nodes=8, fixed_graph=False)
    shared.append(Shared("graph", graphs, [(field, edge) for field in fields for edge in edges]))
    for each in shared:
        each.layer.eval()
    return shared
