from __future__ import annotations

import pytest
import torch

import smoe
from smoe.rules import RoutingClassification
from smoe_paper.baselines.gates import ConvGate

RC = RoutingClassification.released()

X = torch.zeros(2000, 1, 3, 3)


def test_noise_of_each_sample_while_training():
    torch.manual_seed(0)
    inner = smoe.TensorGate(4, 1, (3, 3))
    routing = smoe.nn.NoisyGate(inner)(X)
    assert routing.scores.shape == (2000, 4, 9)
    assert routing.indices.shape == (2000, 1, 9)
    assert torch.equal(routing.clean, inner.scores.flatten(1)[None])
    noise = (routing.noisy - routing.clean).detach()
    assert routing.noise_std == 0.25
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.005)
    assert float(noise.std()) == pytest.approx(0.25, rel=0.02)
    assert float(noise.std(dim=0).min()) > 0.22


def test_own_std_and_gates_that_look_at_their_input():
    torch.manual_seed(0)
    gate = smoe.nn.NoisyGate(ConvGate(1, 4, 1), std=2.0)
    routing = gate(X)
    assert float((routing.noisy - routing.clean).detach().std()) == pytest.approx(2.0, rel=0.02)
    with pytest.raises(ValueError, match="NoisyGate looks at its input"):
        gate()


def test_silent_in_evaluation():
    inner = smoe.TensorGate(4, 2, (3, 3), normalization="softmax")
    layer = smoe.SpatialMoE2d.from_experts(1, 4, 2, gate=smoe.nn.NoisyGate(inner), rule=RC).eval()
    routing = layer.gate(X)
    assert routing.noise_std == 0.0
    assert torch.equal(routing.scores, inner().scores)
    x = torch.randn(2, 1, 3, 3)
    assert torch.equal(layer(x), layer(x))
    assert layer.routing(x).indices.shape == (2, 3, 3)


def test_training_routes_samples_apart_and_trains_the_inner_gate():
    torch.manual_seed(0)
    inner = smoe.TensorGate(4, 2, (3, 3))
    layer = smoe.SpatialMoE2d.from_experts(1, 4, 2, gate=smoe.nn.NoisyGate(inner, std=5.0), rule=RC)
    x = torch.randn(8, 1, 3, 3)
    indices = layer.routing(x).indices
    assert indices.shape == (8, 2, 3, 3)
    assert not torch.equal(indices[0], indices[1])
    layer(x).pow(2).mean().backward()
    assert inner.scores.grad is not None
    assert inner.scores.grad.abs().max() > 0
    assert [name for name, _ in layer.named_parameters()] == ["weight", "gate.gate.scores"]


def test_wrong_arguments():
    gate = smoe.TensorGate(4, 2, (3, 3))
    with pytest.raises(ValueError, match="std must be positive, got 0"):
        smoe.nn.NoisyGate(gate, std=0.0)
    with pytest.raises(ValueError, match="noisy already"):
        smoe.nn.NoisyGate(smoe.nn.NoisyGate(gate))
