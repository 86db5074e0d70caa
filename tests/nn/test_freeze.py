"""Frozen networks compute what they computed, without scores."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn

import smoe

GRID = (6, 7)


def make_layers() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """Layers of every geometry and order, with an input."""
    torch.manual_seed(0)
    edges = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]])
    image, line, volume = torch.randn(2, 3, *GRID), torch.randn(2, 3, 9), torch.randn(2, 3, 3, 4, 5)

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = smoe.GraphMoE(3, 4, 2, num_nodes=5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x, edges)

    return {
        "default": (smoe.SpatialMoE2d(3, 6, 2, spatial_shape=GRID), image),
        "one output": (smoe.SpatialMoE2d(3, 3, 1, spatial_shape=GRID), image),
        "score order": (smoe.SpatialMoE2d(3, 6, 2, spatial_shape=GRID, rule="probe"), image),
        "index order": (smoe.SpatialMoE2d(3, 6, 2, spatial_shape=GRID, rule="rc", order="index"), image),
        "many experts": (smoe.SpatialMoE2d(3, 300, 2, spatial_shape=GRID, local_affine=True), image),
        "any experts": (
            smoe.SpatialMoE(nn.Conv2d(3, 6, 3, padding=1), 6, 2, spatial_shape=GRID, rule="frozen"),
            image,
        ),
        "line": (smoe.SpatialMoE1d(3, 4, 2, spatial_shape=9), line),
        "volume": (smoe.SpatialMoE3d(3, 4, 2, spatial_shape=(3, 4, 5)), volume),
        "mesh": (Graph(), torch.randn(2, 5, 3)),
    }


@pytest.mark.parametrize("name", make_layers())
def test_a_frozen_layer_computes_the_same_without_scores(name: str) -> None:
    layer, input = make_layers()[name]
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    frozen = smoe.freeze(layer)
    assert torch.equal(frozen.eval()(input), layer.eval()(input))
    routed = next(module for module in frozen.modules() if isinstance(module, smoe.nn.RoutedLayer))
    assert isinstance(routed.gate, smoe.DecidedGate)
    assert not list(routed.gate.parameters())
    # Routing and diagnostics work as before.
    original = next(module for module in layer.modules() if isinstance(module, smoe.nn.RoutedLayer))
    assert torch.equal(routed.routing().indices, original.routing().indices)
    assert (routed.routing().weights == 1.0).all()
    assert smoe.describe(frozen) is not None


def test_experts_go_on_learning_and_the_routing_stays() -> None:
    layer, input = make_layers()["default"]
    frozen = smoe.freeze(layer).train()
    assert isinstance(frozen, smoe.SpatialMoE2d)
    before, weight = frozen.routing().indices.clone(), frozen.get_parameter("weight").detach().clone()
    optimizer = torch.optim.SGD(frozen.parameters(), lr=0.1)
    frozen(input).square().mean().backward()
    optimizer.step()
    assert torch.equal(frozen.routing().indices, before)
    assert not torch.equal(frozen.get_parameter("weight"), weight)
    # The network it was made of is left alone.
    assert isinstance(layer, smoe.SpatialMoE2d)
    assert isinstance(layer.gate, smoe.FactorisedGate)


def test_a_frozen_network_is_saved_small_and_loaded() -> None:
    layer = smoe.SpatialMoE2d(3, 8, 2, gate=smoe.TensorGate(8, 2, GRID))
    frozen = smoe.freeze(layer)
    assert frozen.state_dict()["gate.experts"].dtype == torch.uint8
    file = io.BytesIO()
    torch.save(frozen.state_dict(), file)
    file.seek(0)
    other = smoe.freeze(smoe.SpatialMoE2d(3, 8, 2, gate=smoe.TensorGate(8, 2, GRID)))
    other.load_state_dict(torch.load(file))
    input = torch.randn(1, 3, *GRID)
    assert torch.equal(other.eval()(input), frozen.eval()(input))
    damaged = frozen.state_dict()
    damaged["gate.experts"] = torch.full_like(damaged["gate.experts"], 8)
    with pytest.raises(RuntimeError, match=r"gate.experts: the experts must be in \[0, 8\), got 8"):
        other.load_state_dict(damaged)


def test_shared_gates_stay_shared() -> None:
    gate = smoe.TensorGate(4, 2, GRID)
    net = nn.Sequential(*(smoe.SpatialMoE2d(2, 4, 2, gate=gate) for _ in range(2)))
    frozen = smoe.freeze(net)
    assert frozen[0].gate is frozen[1].gate


@pytest.mark.parametrize("options", [{"weighted": True, "rule": "end_to_end"}, {"damping": 0.1, "rule": "rc"}])
def test_gates_whose_scores_are_needed_stay_but_do_not_learn(options) -> None:
    layer = smoe.SpatialMoE2d(3, 4, 2, spatial_shape=GRID, **options)
    frozen = smoe.freeze(layer)
    assert isinstance(frozen.gate, smoe.TensorGate)
    assert frozen.rule == smoe.rules.Frozen()
    looking = smoe.freeze(smoe.SpatialMoE2d(3, 4, 2, gate=smoe.ConvGate(3, 4, 2)))
    assert isinstance(looking.gate, smoe.ConvGate)


def test_freezing_a_layer_in_place_ends_the_learning_of_its_gate() -> None:
    layer = smoe.SpatialMoE2d(3, 6, 2, spatial_shape=GRID)
    assert layer.freeze() is layer
    layer(torch.randn(2, 3, *GRID)).sum().backward()
    assert all(parameter.grad is None for parameter in layer.gate.parameters())


def test_a_frozen_network_is_exported() -> None:
    layer, input = make_layers()["default"]
    frozen = smoe.freeze(layer).eval()
    program = torch.export.export(frozen, (input,))
    torch.testing.assert_close(program.module()(input), frozen(input))


def test_a_network_without_layers_and_bad_indices_are_refused() -> None:
    with pytest.raises(ValueError, match="Conv2d has no SMoE layer to freeze"):
        smoe.freeze(nn.Conv2d(1, 1, 1))
    with pytest.raises(ValueError, match="got 3"):
        smoe.DecidedGate(torch.tensor([[0, 3]]), num_experts=3)
    with pytest.raises(ValueError, match="integers"):
        smoe.DecidedGate(torch.zeros(1, 3), num_experts=3)
    layer = smoe.SpatialMoE2d(1, 3, 1, spatial_shape=GRID)
    with pytest.raises(ValueError, match="the layer needs"):
        layer.replace_gate(smoe.TensorGate(3, 1, (2, 2)))
