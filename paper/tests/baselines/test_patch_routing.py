from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from smoe_paper.baselines.patch_moe import PatchMoE, patch_importance_loss, patch_load_loss, patch_moe_loss


def squared_variation(values: list[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / len(values) / mean**2


def normal_tail(value: float) -> float:
    """Probability that a standard normal number exceeds `value`."""
    return 0.5 * math.erfc(value / math.sqrt(2.0))


def test_importance_by_hand():
    # Sums over the two tokens of the first group: 0.8, 0.6 and 0.6; mean 2/3; the squared deviations are 4/225, 1/225
    # and 1/225, so the variance is 2/225, and over 4/9 it is 0.02. The second group is even: 0. Mean of groups: 0.01.
    first = [[0.6, 0.2, 0.2], [0.2, 0.4, 0.4]]
    second = [[0.5, 0.25, 0.25], [1 / 6, 5 / 12, 5 / 12]]
    probabilities = torch.tensor([first, second], dtype=torch.float64)
    # A constant on all scores of a token changes nothing.
    assert float(patch_importance_loss(probabilities.log() + 3.0)) == pytest.approx(0.01)


@pytest.mark.parametrize("num_selected", [1, 2, 4])
def test_load_equals_loops(num_selected):
    G, S, X, std = 2, 5, 4, 0.3
    clean = torch.randn(G, S, X, dtype=torch.float64)
    noisy = clean + std * torch.randn_like(clean)
    losses: list[float] = []
    for g in range(G):
        loads = [0.0] * X
        for s in range(S):
            threshold = sorted(noisy[g, s].tolist(), reverse=True)[num_selected - 1]
            for x in range(X):
                loads[x] += normal_tail((threshold - float(clean[g, s, x])) / std) / S
        losses.append(squared_variation(loads))
    assert float(patch_load_loss(clean, noisy, num_selected, std)) == pytest.approx(sum(losses) / G)


def test_gradients_are_those_of_the_functions():
    clean = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    noise = 0.5 * torch.randn(2, 3, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(patch_importance_loss, clean)
    # Through the threshold too: the noise stays, and all noisy scores move with the clean ones.
    assert torch.autograd.gradcheck(lambda clean: patch_load_loss(clean, clean + noise, 2, 0.5), clean)


def test_sum_over_layers_of_the_mean_of_both():
    net = nn.Sequential(PatchMoE(4, 6, 3, 2), PatchMoE(4, 6, 2, noise_std=0.7))
    net(torch.randn(4, 9, 4))
    expected = 0.0
    for layer, num_selected, shape in zip(net, (2, 1), ((4, 9, 3), (4, 9, 2)), strict=True):
        assert isinstance(layer, PatchMoE)
        scores = layer.last_scores
        assert scores is not None
        assert scores.clean.shape == shape
        importance = patch_importance_loss(scores.clean)
        load = patch_load_loss(scores.clean, scores.noisy, num_selected, layer.noise_std)
        expected += (importance + load).item() / 2
    assert expected > 0
    assert patch_moe_loss(net).item() == pytest.approx(0.01 * expected)
    assert patch_moe_loss(net, weight=3.0).item() == pytest.approx(3.0 * expected)


def test_wrong_uses():
    layer = PatchMoE(4, 6, 3, noise_std=0.0)
    with pytest.raises(ValueError, match="Linear holds no PatchMoE layer"):
        patch_moe_loss(nn.Linear(1, 1))
    with pytest.raises(ValueError, match="no forward pass in training mode yet"):
        patch_moe_loss(layer)
    layer(torch.randn(1, 5, 4))
    with pytest.raises(ValueError, match=r"only with routing noise, got noise_std 0\.0"):
        patch_moe_loss(layer)
