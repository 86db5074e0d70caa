"""Layers of every geometry train without a value that the host waits for; tests/nn/learning has those of the plane."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import smoe
from host_reads import CountReads

RULES: list[dict[str, Any]] = [
    {},
    {"rule": "rc", "damping": 0.1},
    {"rule": "probe(window=2)", "order": "score"},
    {"rule": "straight_through(patience=1)"},
    {"rule": "end_to_end", "order": "score"},
]
IDS = ["default", "rc", "probe", "restarts", "end_to_end"]


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def train(layer: torch.nn.Module, *arguments: torch.Tensor) -> CountReads:
    """Three steps, each with a gradient scaler's factor."""
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with CountReads() as counter:
        for _ in range(3):
            optimizer.zero_grad()
            (smoe.nn.track_loss_scale(layer(*arguments).square().mean(), layer) * 1024.0).backward()
            optimizer.step()
    return counter


@pytest.mark.parametrize("options", RULES, ids=IDS)
def test_lines(options: dict[str, Any]) -> None:
    with torch.device("meta"):
        layer = smoe.SpatialMoE1d.from_experts(3, 5, 2, spatial_shape=9, **options)
    assert train(layer, empty(2, 3, 9)).reads == []


@pytest.mark.parametrize("options", RULES, ids=IDS)
def test_volumes(options: dict[str, Any]) -> None:
    with torch.device("meta"):
        layer = smoe.SpatialMoE3d.from_experts(3, 5, 2, spatial_shape=(3, 4, 5), **options)
    assert train(layer, empty(2, 3, 3, 4, 5)).reads == []


@pytest.mark.parametrize("pixel_order", ["nested", "ring"])
@pytest.mark.parametrize("options", RULES, ids=IDS)
def test_healpix(options: dict[str, Any], pixel_order: Any) -> None:
    # The numbers of neighbours are computed once, on the host.
    layer = smoe.HEALPixMoE.from_experts(3, 5, 2, nside=2, pixel_order=pixel_order, **options)
    layer(torch.zeros(2, 3, 48))
    layer = layer.to("meta")
    layer(empty(2, 3, 48))
    assert train(layer, empty(2, 3, 48)).reads == []


@pytest.mark.parametrize("aggregation", ["mean", "sum", "gcn"])
@pytest.mark.parametrize("options", RULES, ids=IDS)
def test_graphs(options: dict[str, Any], aggregation: Any) -> None:
    with torch.device("meta"):
        layer = smoe.GraphMoE.from_experts(3, 5, 2, num_nodes=7, aggregation=aggregation, edge_dim=2, **options)
    edges = empty(2, 11, dtype=torch.int64)
    assert train(layer, empty(4, 7, 3), edges, empty(11), empty(11, 2)).reads == []
