"""V-MoE: the layer in loops, and its losses."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from smoe_paper.baselines.patch_moe import FeedForward, PatchMoE, patch_importance_loss, patch_load_loss, patch_moe_loss

# Samples, tokens, experts, capacity factor, and whether choices are dropped.
CASES = {
    "overflow": (2, 13, 3, 0.5, True),
    "roomy": (3, 7, 4, 4.0, False),
    "one expert": (2, 5, 1, 1.05, False),
    "one token": (1, 1, 2, 1.05, False),
}
SEED = 7


def define(layer: PatchMoE, tokens: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The output in loops, and how many choices were dropped. The noise is `(B, N, X)`."""
    B, N, D = tokens.shape
    needed = math.ceil(N * layer.capacity_factor / layer.num_experts)
    capacity = needed + (-needed) % 4
    outputs, num_dropped = torch.zeros(B, N, D, dtype=tokens.dtype), 0
    for b in range(B):
        num_served = [0] * layer.num_experts
        for n in range(N):
            scores = [layer.gate.weight[x] @ tokens[b, n] + noise[b, n, x] for x in range(layer.num_experts)]
            x = max(range(layer.num_experts), key=lambda x, scores=scores: (scores[x].item(), -x))
            if num_served[x] == capacity:
                num_dropped += 1
                continue
            num_served[x] += 1
            expert = layer.experts[x]
            assert isinstance(expert, FeedForward)
            hidden = expert.widen.weight @ tokens[b, n] + expert.widen.bias
            hidden = hidden * 0.5 * (1.0 + torch.erf(hidden / math.sqrt(2.0)))
            output = expert.narrow.weight @ hidden + expert.narrow.bias
            outputs[b, n] = torch.exp(scores[x]) / sum(torch.exp(score) for score in scores) * output
    return outputs, num_dropped


def build(name: str) -> tuple[PatchMoE, torch.Tensor]:
    torch.manual_seed(0)
    samples, tokens, num_experts, capacity_factor, _ = CASES[name]
    layer = PatchMoE(6, 5, num_experts, capacity_factor=capacity_factor).double()
    for expert in layer.experts:
        assert isinstance(expert, FeedForward)
        for linear in (expert.widen, expert.narrow):
            nn.init.normal_(linear.bias)
    return layer, torch.randn(samples, tokens, 6, dtype=torch.float64)


def run(layer: PatchMoE, tokens: torch.Tensor, output: torch.Tensor) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    names = ["tokens", *(name for name, _ in layer.named_parameters())]
    weighted = (output * torch.randn_like(output)).sum()
    # A definition that never calls an expert has no gradient for it.
    gradients = torch.autograd.grad(weighted, [tokens, *layer.parameters()], materialize_grads=True)
    return {"output": output, **dict(zip(names, gradients, strict=True))}


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_equals_loops(name, is_training):
    samples, num_tokens, num_experts, _, overflows = CASES[name]
    layer, tokens = build(name)
    layer.train(is_training)
    tokens.requires_grad_()
    torch.manual_seed(SEED)
    actual = run(layer, tokens, layer(tokens))
    torch.manual_seed(SEED)
    noise = is_training / num_experts * torch.randn(samples, num_tokens, num_experts, dtype=torch.float64)
    output, num_dropped = define(layer, tokens, noise)
    assert (num_dropped > 0) == overflows
    for key, expected in run(layer, tokens, output).items():
        torch.testing.assert_close(actual[key], expected, msg=lambda text, key=key: f"{key}: {text}")


def test_only_the_last_training_pass_is_kept():
    layer, tokens = build("overflow")
    layer.eval()(tokens)
    assert layer.last_scores is None
    layer.train()(tokens)
    kept = layer.last_scores
    assert kept is not None
    assert kept.clean.shape == kept.noisy.shape == (2, 13, 3)
    layer.eval()(2 * tokens)
    assert layer.last_scores is kept
    copied = copy.deepcopy(layer)
    assert copied.last_scores is None
    assert torch.equal(copied(tokens), layer(tokens))


def test_expert_nobody_chose_has_a_gradient_of_zero():
    layer, tokens = build("roomy")
    nn.init.zeros_(layer.gate.weight)
    # All scores are equal: the lowest number wins.
    layer.eval()(tokens).sum().backward()
    for number, expert in enumerate(layer.experts):
        for name, parameter in expert.named_parameters():
            assert parameter.grad is not None
            assert bool((parameter.grad != 0).any()) == (number == 0), (number, name)


def test_routes_in_float32_under_autocast():
    layer, tokens = PatchMoE(6, 5, 3).eval(), torch.randn(2, 9, 6)
    expected = layer(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer._score(tokens).clean.dtype == torch.float32
        actual = layer(tokens)
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual.float(), expected, rtol=0.05, atol=0.05)


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


def test_load_equals_loops():
    G, S, X, std = 2, 5, 4, 0.3
    clean = torch.randn(G, S, X, dtype=torch.float64)
    noisy = clean + std * torch.randn_like(clean)
    losses: list[float] = []
    for g in range(G):
        loads = [0.0] * X
        for s in range(S):
            for x in range(X):
                loads[x] += normal_tail((max(noisy[g, s].tolist()) - float(clean[g, s, x])) / std) / S
        losses.append(squared_variation(loads))
    assert float(patch_load_loss(clean, noisy, std)) == pytest.approx(sum(losses) / G)


def test_gradients_are_those_of_the_functions():
    clean = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    noise = 0.5 * torch.randn(2, 3, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(patch_importance_loss, clean)
    # Through the threshold too: the noise stays, and all noisy scores move with the clean ones.
    assert torch.autograd.gradcheck(lambda clean: patch_load_loss(clean, clean + noise, 0.5), clean)


def test_sum_over_layers_of_the_mean_of_both():
    net = nn.Sequential(PatchMoE(4, 6, 3), PatchMoE(4, 6, 2))
    with pytest.raises(ValueError, match="no forward pass in training mode yet"):
        patch_moe_loss(net)
    net(torch.randn(4, 9, 4))
    expected = 0.0
    for layer in net:
        assert isinstance(layer, PatchMoE)
        scores = layer.last_scores
        assert scores is not None
        load = patch_load_loss(scores.clean, scores.noisy, layer.noise_std)
        expected += (patch_importance_loss(scores.clean) + load).item() / 2
    assert expected > 0
    assert patch_moe_loss(net).item() == pytest.approx(0.01 * expected)
    assert patch_moe_loss(net, weight=3.0).item() == pytest.approx(3.0 * expected)
