"""Gates with noise in training, and with normalised scores."""

from __future__ import annotations

import pytest
import torch

import smoe
from smoe_paper.baselines.gates import ConvGate
from smoe_paper.baselines.routing_losses import Normalization, ScoreGate

X = torch.zeros(2000, 1, 3, 3)


def test_noise_of_each_sample_while_training():
    torch.manual_seed(0)
    inner = smoe.TensorGate(4, 1, (3, 3))
    gate = ScoreGate(inner)
    routing = gate(X)
    assert routing.scores.shape == (2000, 4, 9) and routing.indices.shape == (2000, 1, 9)
    assert gate.last is not None
    clean, noisy, std = gate.last
    assert torch.equal(clean, inner.scores.flatten(1)[None]) and std == 0.25
    noise = (noisy - clean).detach()
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.005)
    assert float(noise.std()) == pytest.approx(0.25, rel=0.02)
    assert float(noise.std(dim=0).min()) > 0.22
    looking = ScoreGate(ConvGate(1, 4, 1), std=2.0)
    looking(X)
    assert looking.last is not None
    assert float((looking.last[1] - looking.last[0]).detach().std()) == pytest.approx(2.0, rel=0.02)
    with pytest.raises(ValueError, match="looks at its input"):
        looking()


def test_silent_in_evaluation():
    inner = smoe.TensorGate(4, 2, (3, 3))
    gate = ScoreGate(inner, normalization="softmax")
    layer = smoe.SpatialMoE2d.from_experts(1, 4, 2, gate=gate, rule="rc").eval()
    assert torch.equal(gate(X).scores, inner().scores.softmax(dim=1))
    x = torch.randn(2, 1, 3, 3)
    assert torch.equal(layer(x), layer(x))
    assert layer.routing(x).indices.shape == (2, 3, 3)


def test_training_routes_samples_apart_and_trains_the_inner_gate():
    torch.manual_seed(0)
    inner = smoe.TensorGate(4, 2, (3, 3))
    layer = smoe.SpatialMoE2d.from_experts(1, 4, 2, gate=ScoreGate(inner, std=5.0), rule="rc")
    x = torch.randn(8, 1, 3, 3)
    indices = layer.routing(x).indices
    assert indices.shape == (8, 2, 3, 3) and not torch.equal(indices[0], indices[1])
    layer(x).pow(2).mean().backward()
    assert inner.scores.grad is not None and inner.scores.grad.abs().max() > 0
    assert [name for name, _ in layer.named_parameters()] == ["weight", "gate.gate.scores"]
    with pytest.raises(ValueError, match="nor adds noise, got a ScoreGate"):
        layer.rule = "straight_through"


@pytest.mark.parametrize(
    ("normalization", "expected"),
    [
        ("none", [-2.0, 1.0, 0.0]),
        ("abs", [2.0, 1.0, 0.0]),
        # exp(-2), e and 1 over their sum 3.8536
        ("softmax", [0.0351, 0.7054, 0.2595]),
        # exp(2), e and 1 over their sum 11.1073
        ("abs_softmax", [0.6652, 0.2447, 0.0900]),
    ],
)
def test_routing_and_weights_use_the_normalised_scores(normalization: Normalization, expected: list[float]):
    inner = smoe.FixedGate(torch.tensor([-2.0, 1.0, 0.0]).reshape(3, 1, 1), 1)
    gate = ScoreGate(inner, 0.0, normalization)
    torch.testing.assert_close(gate(None).scores.flatten(), torch.tensor(expected), atol=1e-4, rtol=0.0)
    layer = smoe.SpatialMoE2d.from_experts(1, 3, 1, 1, gate=gate, weighted=True, rule="frozen", bias=False)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    # An absolute value lets the strongly negative expert 0 win.
    favourite = 0 if "abs" in normalization else 1
    assert layer.routing().indices.item() == favourite
    assert layer(torch.ones(1, 1, 1, 1)).item() == pytest.approx(expected[favourite], abs=1e-4)


def test_wrong_arguments():
    gate = smoe.TensorGate(4, 2, (3, 3))
    for bad, std in ((gate, -1.0), (ScoreGate(gate), None)):
        with pytest.raises(ValueError, match="needs a gate of another kind and a std of at least 0"):
            ScoreGate(bad, std=std)
    with pytest.raises(ValueError, match="none, softmax, abs, abs_softmax, got 'sigmoid'"):
        ScoreGate(gate, normalization="sigmoid")  # type: ignore[arg-type]
