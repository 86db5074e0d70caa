"""A small network of every geometry and order, large enough for the kernels that sort pixels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import smoe

GRID = (11, 19)
RING = torch.stack([torch.arange(20), torch.arange(20).roll(1)])


class OnGraph(nn.Module):
    """A layer on a graph whose edges stay."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = smoe.GraphMoE.from_experts(32, 6, 2, num_nodes=20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Features of the nodes to outputs of their experts."""
        return self.layer(x, RING)


def _plane(num_experts: int = 8, num_selected: int = 2, **options) -> Callable[[], nn.Module]:
    options = options if "gate" in options else {"spatial_shape": GRID, **options}
    return lambda: smoe.SpatialMoE2d.from_experts(16, num_experts, num_selected, **options)


# Each with the shape of an input.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "plane": (_plane(), (1, 16, *GRID)),
    "unequal families": (_plane(7, 3, padding_mode="longitude"), (2, 16, *GRID)),
    "stride": (_plane(stride=2), (1, 16, 21, 37)),
    "channels": (_plane(expert_channels=3), (1, 16, *GRID)),
    "affine": (_plane(300, local_affine=True), (1, 16, *GRID)),
    "score": (_plane(rule="rc", padding_mode="circular"), (1, 16, *GRID)),
    "index": (_plane(rule="rc", order="index"), (1, 16, *GRID)),
    "any experts": (
        lambda: smoe.SpatialMoE(nn.Conv2d(16, 6, 3, padding=1), 6, 2, spatial_shape=GRID, rule="frozen"),
        (2, 16, *GRID),
    ),
    "line": (lambda: smoe.SpatialMoE1d.from_experts(16, 8, 2, spatial_shape=40), (1, 16, 40)),
    "volume": (lambda: smoe.SpatialMoE3d.from_experts(4, 8, 2, spatial_shape=(3, 9, 17), stride=2), (1, 4, 6, 17, 33)),
    "sphere": (lambda: smoe.HEALPixMoE.from_experts(16, 8, 2, nside=4), (1, 16, 12, 4, 4)),
    "graph": (OnGraph, (1, 20, 32)),
}


def make_network(name: str) -> tuple[nn.Module, torch.Tensor]:
    """A network in evaluation mode, whose experts differ, and an input."""
    torch.manual_seed(0)
    build, shape = NETWORKS[name]
    network = build()
    for parameter in network.parameters():
        nn.init.normal_(parameter)
    return network.eval(), torch.randn(shape)
