"""Embeddings that are computed from coordinates: they learn as tables do, and gates of them move to other places."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import smoe
from smoe.nn import CoordinateEmbedding
from smoe.ops._healpix import healpix_coordinates


def degrees(rows: int, columns: int) -> torch.Tensor:
    latitude = (torch.arange(rows) + 0.5) * 180 / rows - 90
    longitude = (torch.arange(columns) + 0.5) * 360 / columns
    return torch.stack(torch.meshgrid(latitude, longitude, indexing="ij"), dim=-1)


def region_of(coordinates: torch.Tensor) -> torch.Tensor:
    """0 west and 1 east."""
    return (coordinates[..., 1] < 180).long()


def sample(coordinates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(8, 2, *coordinates.shape[:-1])
    return x, torch.where(region_of(coordinates) == 0, x, x.flip(1))


@pytest.fixture(scope="module")
def trained() -> smoe.SpatialMoE2d:
    torch.manual_seed(0)
    coordinates = degrees(8, 16)
    embedding = CoordinateEmbedding(4, coordinates, sphere=True, table=False)
    layer = smoe.SpatialMoE2d(2, 2, 1, embedding=embedding, local_affine=False, padding_mode="longitude")
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-2)
    for _ in range(200):
        x, y = sample(coordinates)
        optimizer.zero_grad()
        (layer(x) - y).square().mean().backward()
        optimizer.step()
    return layer.eval()


def error(layer: torch.nn.Module, coordinates: torch.Tensor) -> float:
    x, y = sample(coordinates)
    with torch.no_grad():
        return float((layer(x) - y).square().mean() / y.var())


def test_a_gate_learns_by_its_network_and_serves_a_finer_grid(trained: smoe.SpatialMoE2d) -> None:
    assert not dict(trained.gate.named_parameters())
    assert error(trained, degrees(8, 16)) < 0.05
    finer = smoe.interpolate_grids(trained, example_input=torch.zeros(1, 2, 16, 32))
    assert error(finer, degrees(16, 32)) < 0.12
    twin = copy.deepcopy(trained)
    assert error(twin, degrees(8, 16)) < 0.05  # a decision that must not be kept
    with torch.no_grad():
        twin.gate.embedding.net.last.weight.zero_()  # type: ignore[union-attr]
    assert error(twin, degrees(8, 16)) > 0.3


@pytest.mark.parametrize("kind", ["plane", "sphere"])
def test_another_grid_is_served_without_a_call(kind: str, trained: smoe.SpatialMoE2d) -> None:
    layer, x = trained, torch.randn(2, 2, 16, 32)
    if kind == "sphere":
        places = trained.gate.embedding.at(healpix_coordinates(4).float().view(12, 4, 4, 2))  # type: ignore[union-attr]
        layer, x = smoe.HEALPixMoE(2, 2, nside=4, embedding=places).eval(), torch.randn(2, 2, 768)
    expected = smoe.interpolate_grids(layer, example_input=x)(x)
    with pytest.warns(UserWarning, match="receive no gradient there; smoe.interpolate_grids makes a network"):
        found = layer(x.requires_grad_())
    assert torch.equal(found, expected) and layer.gate.spatial_shape == ((8, 16) if kind == "plane" else (12, 4, 4))
    layer.zero_grad()
    found.sum().backward()
    assert x.grad is not None and layer.weight.grad is None
    with pytest.raises(ValueError, match=r"smoe\.interpolate_grids"):
        copy.deepcopy(layer).train()(x)
    with (
        pytest.warns(match="same area"),
        pytest.raises(ValueError, match=r"must be \(B, 2, .* got shape \([12], 1"),
    ):
        layer(x[:, :1])


def test_a_gate_moves_to_another_geometry(trained: smoe.SpatialMoE2d) -> None:
    faces = healpix_coordinates(8).float().view(12, 8, 8, 2)
    embedding = trained.gate.embedding.at(faces)  # type: ignore[union-attr]
    sphere = smoe.HEALPixMoE(2, 2, 1, nside=8, embedding=embedding, local_affine=False).eval()
    sphere.load_state_dict(
        {**sphere.state_dict(), "gate.keys": trained.gate.keys, "bias": trained._offsets(),
         "weight": trained.weight.view_as(sphere.weight)}
    )  # fmt: skip
    assert error(sphere, healpix_coordinates(8, "nested").float()) < 0.12
    gate = smoe.transfer_gate(trained.gate, degrees(8, 16), faces)
    torch.testing.assert_close(gate(None).scores, sphere.gate(None).scores)


def test_state_fields_and_tables() -> None:
    torch.manual_seed(0)
    places, fields = torch.rand(5, 6, 2) * 100, torch.randn(1, 5, 6)
    embedding = CoordinateEmbedding(4, places, fields)
    layer = smoe.SpatialMoE2d(2, 2, embedding=embedding)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    start = copy.deepcopy(embedding.state_dict())
    for _ in range(3):
        layer(torch.randn(4, 2, 5, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    changed = {name for name, value in embedding.state_dict().items() if not torch.equal(value, start[name])}
    assert {"values", "net.first.weight", "net.last.bias"} <= changed
    assert not {"places", "bounds"} & changed
    twin = smoe.SpatialMoE2d(2, 2, embedding=CoordinateEmbedding(4, torch.rand(5, 6, 2), fields))
    twin.load_state_dict(layer.state_dict())
    x = torch.randn(1, 2, 5, 6)
    torch.testing.assert_close(twin.eval()(x), layer.eval()(x))
    torch.testing.assert_close(smoe.freeze(layer)(x), layer(x))
    # At its own places it is itself; a table comes from the nearest pixel, what is computed from the place itself.
    torch.testing.assert_close(embedding.at(places, fields)(), embedding())
    moved = embedding.at(places[:3] + 1e-3, fields[:, :3])
    torch.testing.assert_close(moved.values, embedding.values[:, :3].detach())
    assert moved.spatial_shape == (3, 6)
    with pytest.raises(ValueError, match=r"fields must be \(1, 3, 6\), as many as before, got \(\)"):
        embedding.at(places[:3])
    with pytest.raises(ValueError, match="latitude and longitude"):
        CoordinateEmbedding(4, torch.rand(5, 6, 3), sphere=True)


def test_a_converted_network_has_the_embedding() -> None:
    net = nn.Sequential(*(nn.Conv2d(2, 2, 3, padding=1) for _ in range(2)))
    embedding, x = CoordinateEmbedding(4, torch.rand(6, 8, 2)), torch.randn(2, 2, 6, 8)

    def make_gate(change: smoe.nn.Change) -> smoe.SpatialGate:
        return smoe.FactorisedGate(change.num_experts, change.num_selected, embedding=embedding)

    converted: Any = smoe.convert(net, example_input=x, make_gate=make_gate, start="filters")
    torch.testing.assert_close(converted(x), net(x))
    assert [layer.gate.embedding is embedding for layer in converted] == [True, True]
