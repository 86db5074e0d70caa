from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import smoe
from definitions import gate_gradient
from smoe_paper.baselines.layers import ConvGate
from smoe_paper.baselines.routing_losses import (
    ScoreGate,
    auxiliary_loss,
    importance_loss,
    load_loss,
    spatial_agreement_loss,
)


def squared_variation(values: list[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / len(values) / mean**2


def test_importance_sums_over_samples_and_pixels_per_expert():
    # Sums over two pixels: 3, 1 and 2; mean 2, variance 2/3, so (2/3) / 4.
    weights = torch.tensor([[1.0, 2.0], [0.5, 0.5], [2.0, 0.0]]).reshape(1, 3, 2)
    assert float(importance_loss(weights)) == pytest.approx(1 / 6)
    assert float(importance_loss(weights.expand(4, 3, 2))) == pytest.approx(1 / 6)
    assert importance_loss(torch.ones(1, 3, 4)) == 0


@pytest.mark.parametrize("takes_absolute", [False, True])
@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("num_selected", [1, 2])
def test_load_equals_loops(num_selected, is_shared, takes_absolute):
    torch.manual_seed(0)
    B, X, P, std = 2, 3, 6, 0.5
    clean = torch.randn(1 if is_shared else B, X, P, dtype=torch.float64)
    noisy = clean + std * torch.randn(B, X, P, dtype=torch.float64)

    def normal_cdf(value: float) -> float:
        return 0.5 * (1.0 + math.erf(value / std / math.sqrt(2.0)))

    loads = [0.0] * X
    for b in range(B):
        for p in range(P):
            scores = [float(noisy[b, x, p]) for x in range(X)]
            deciding = sorted((abs(score) if takes_absolute else score for score in scores), reverse=True)
            threshold = deciding[num_selected - 1]
            for x in range(X):
                score = float(clean[0 if is_shared else b, x, p])
                loads[x] += 1.0 - normal_cdf(threshold - score)
                if takes_absolute:
                    loads[x] += normal_cdf(-threshold - score)
    # One load per expert: the grid does not survive.
    actual = load_loss(clean, noisy, num_selected, std, "abs" if takes_absolute else "none")
    assert float(actual) == pytest.approx(squared_variation(loads))


def test_load_needs_noise():
    with pytest.raises(ValueError, match="give the gate a ScoreGate with noise"):
        load_loss(torch.zeros(1, 2, 1), torch.zeros(1, 2, 1), 1, 0.0)


def test_spatial_agreement_by_hand():
    # Deviations over two samples at three pixels: expert 0 has 1, 3 and 2, mean 2; expert 1 has 0, 1 and 0.5, mean 0.5.
    first = [[0.0, 0.0, 1.0], [4.0, 1.0, 2.0]]
    second = [[2.0, 6.0, 5.0], [4.0, 3.0, 3.0]]
    weights = torch.tensor([first, second])
    assert float(spatial_agreement_loss(weights)) == pytest.approx(2.5)
    assert spatial_agreement_loss(weights[:1]) == 0


def test_spatial_agreement_has_the_gradient_of_the_deviation():
    torch.manual_seed(0)
    weights = torch.randn(5, 3, 8, dtype=torch.float64)
    weights[:, 1, 2:4] = 0.7  # samples agree here, and the root has no derivative
    ours, theirs = weights.clone().requires_grad_(), weights.clone().requires_grad_()
    spatial_agreement_loss(ours).backward()
    theirs.std(dim=0, correction=0).mean(dim=1).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    assert ours.grad is not None and not ours.grad[:, 1, 2:4].any()


def test_load_far_from_the_threshold_is_that_of_the_formula():
    """Up to 60 standard deviations away, where densities are no normal numbers any more."""
    torch.manual_seed(0)
    clean = (20.0 * torch.rand(1, 3, 64) - 10.0).requires_grad_()
    noisy = clean.detach() + torch.randn(4, 3, 64) / 3
    load_loss(clean, noisy, 1, 1 / 3).backward()
    exact = clean.detach().double().requires_grad_()
    loads = torch.special.ndtr((exact - noisy.double().amax(dim=1, keepdim=True)) * 3).sum(dim=(0, 2))
    (loads.var(correction=0) / loads.mean() ** 2).backward()
    torch.testing.assert_close(clean.grad, exact.grad, check_dtype=False, rtol=1e-4, atol=1e-9)


def run(*layers: smoe.SpatialMoE2d) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(*layers)
    net(torch.randn(4, 1, 5, 6))
    return net


@pytest.mark.parametrize("is_noisy", [False, True])
def test_gate_that_does_not_look_at_its_input_counts_once(is_noisy):
    first, other = (smoe.TensorGate(3, 1, (5, 6)) for _ in range(2))
    gate = ScoreGate(first) if is_noisy else first

    def loss(*gates: smoe.SpatialGate) -> torch.Tensor:
        layers = (smoe.SpatialMoE2d.from_experts(1, 3, 1, gate=gate) for gate in gates)
        return auxiliary_loss(run(*layers), importance=True)

    torch.testing.assert_close(loss(gate, gate), loss(gate))
    parts = [importance_loss(each.scores.flatten(1)[None].softmax(dim=1)) for each in (first, other)]
    torch.testing.assert_close(loss(gate, other), 0.01 * torch.stack(parts).sum())


def test_gate_that_looks_at_its_input_counts_in_each_layer():
    gate = ConvGate(1, 3, 1)
    net = run(*(smoe.SpatialMoE2d.from_experts(1, 3, 1, gate=gate) for _ in range(2)))
    expected = 0.0
    for layer in net.modules():
        if isinstance(layer, smoe.SpatialMoE2d):
            routing = layer._scored_routing()
            assert routing is not None
            expected = expected + 0.5 * spatial_agreement_loss(routing.scores)
    assert isinstance(expected, torch.Tensor)
    assert expected > 0
    torch.testing.assert_close(auxiliary_loss(net, spatial_agreement=True, weight=0.5), expected)


def test_all_three_are_added_and_reach_the_gate():
    gate = ScoreGate(ConvGate(1, 3, 1))
    net = run(smoe.SpatialMoE2d.from_experts(1, 3, 1, gate=gate))
    names = ("importance", "load", "spatial_agreement")
    losses = [auxiliary_loss(net, **{name: True}) for name in names]
    total = auxiliary_loss(net, importance=True, load=True, spatial_agreement=True)
    torch.testing.assert_close(total, torch.stack(losses).sum())
    for name, loss in zip(names, losses, strict=True):
        (gradient,) = torch.autograd.grad(loss, list(gate.parameters()), retain_graph=True)
        assert gradient.abs().max() > 0, name


def test_auxiliary_and_routing_classification_gradients_add_up():
    torch.manual_seed(0)
    layer = smoe.SpatialMoE2d.from_experts(1, 3, 1, spatial_shape=(5, 6), rule="rc").double()
    x = torch.randn(4, 1, 5, 6, dtype=torch.float64)

    def gradient(with_task: bool, with_auxiliary: bool) -> torch.Tensor:
        layer.zero_grad()
        loss = with_task * layer(x).pow(2).mean()
        if with_auxiliary:
            loss = loss + auxiliary_loss(layer, importance=True)
        loss.backward()
        return gate_gradient(layer).clone()

    both, task = gradient(True, True), gradient(True, False)
    layer.zero_grad()
    auxiliary_loss(layer, importance=True).backward()
    auxiliary = gate_gradient(layer)
    assert auxiliary.abs().max() > 0
    torch.testing.assert_close(both, task + auxiliary)


def test_wrong_uses():
    layer = smoe.SpatialMoE2d.from_experts(1, 3, 1, spatial_shape=(5, 6))
    with pytest.raises(ValueError, match="choose at least one of importance, load, spatial_agreement"):
        auxiliary_loss(layer)
    with pytest.raises(ValueError, match="no forward pass in training mode yet"):
        auxiliary_loss(layer, importance=True)
    with pytest.raises(ValueError, match="Linear holds no SMoE layer"):
        auxiliary_loss(nn.Linear(1, 1), importance=True)
    with pytest.raises(ValueError, match="only with routing noise"):
        auxiliary_loss(run(layer), load=True)
