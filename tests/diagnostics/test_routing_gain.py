from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from smoe.diagnostics import on_commonest_experts, routing_gain
from smoe.nn import ConvGate, FixedGate, NoisyGate, SpatialMoE2d, TensorGate
from smoe.ops.routing import Routing


def routing_of(indices: list, num_experts: int) -> Routing:
    chosen = torch.tensor(indices, dtype=torch.int32)
    scores = torch.zeros(len(chosen), num_experts, chosen.shape[2])
    return Routing(chosen, scores, scores, scores)


def test_the_commonest_expert_of_each_slot() -> None:
    # Slot 0 has 2 three times, slot 1 has 0 twice.
    routing = on_commonest_experts(routing_of([[[2, 2, 1, 2], [0, 0, 2, 1]]], 3))
    assert routing.indices.tolist() == [[[2] * 4, [0] * 4]]
    assert routing.indices.dtype == torch.int32 and routing.indices.is_contiguous()


def test_no_expert_has_two_slots_and_ties_go_to_the_lowest() -> None:
    # Expert 1 is the commonest in both slots; the second takes the commonest of the others.
    routing = on_commonest_experts(routing_of([[[1, 1, 1, 0], [1, 1, 2, 2]]], 4))
    assert routing.indices[0, :, 0].tolist() == [1, 2]
    assert on_commonest_experts(routing_of([[[3, 0, 3, 0]]], 4)).indices[0, :, 0].tolist() == [0]


def test_samples_are_counted_together() -> None:
    routing = on_commonest_experts(routing_of([[[0, 0]], [[1, 1]], [[1, 0]], [[1, 1]]], 2))
    assert routing.indices.tolist() == [[[1, 1]]] * 4


def planted() -> tuple[SpatialMoE2d, torch.Tensor, torch.Tensor]:
    """Two filters, x and -x, and an oracle gate: the left column and the two right ones."""
    regions = torch.tensor([[0, 1, 1]] * 3)
    layer = SpatialMoE2d(1, 2, 1, 1, gate=FixedGate.from_region_map(regions))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, -1.0]).view(2, 1, 1, 1))
    x = torch.ones(2, 1, 3, 3)
    return layer, x, torch.where(regions == 0, 2.0, -2.0).expand(2, 1, 3, 3)


def test_the_gain_is_the_share_of_the_loss_that_the_routing_removes() -> None:
    layer, x, target = planted()
    found = routing_gain(layer, F.mse_loss, x, target)
    # Errors of 1 everywhere; with expert 1 everywhere, 3 at a third of the pixels: (9 + 1 + 1) / 3.
    assert found.loss == pytest.approx(1.0)
    assert found.loss_of_commonest == pytest.approx(11 / 3)
    assert found.gain == pytest.approx(8 / 11)


def test_a_uniform_routing_is_worth_nothing() -> None:
    layer, x, target = planted()
    layer.gate.get_buffer("scores").zero_()
    assert routing_gain(layer, F.mse_loss, x, target).gain == 0.0
    assert routing_gain(nn.Conv2d(1, 1, 1), F.mse_loss, x, target).gain == 0.0


def test_without_a_positive_loss_there_is_no_share() -> None:
    layer, x, target = planted()
    gain = routing_gain(layer, lambda prediction, truth: -F.mse_loss(prediction, truth), x, target).gain
    assert math.isnan(gain)


@pytest.mark.parametrize("rule", ["rc", "probe", "frozen"])
def test_the_model_does_not_change(rule: str) -> None:
    shared = TensorGate(4, 2, (5, 6))
    net = nn.Sequential(
        SpatialMoE2d(1, 4, 2, gate=shared, rule=rule),
        nn.BatchNorm2d(2),
        nn.Dropout(0.5).eval(),
        SpatialMoE2d(2, 4, 2, gate=shared, rule=rule),
        SpatialMoE2d(2, 3, 1, gate=NoisyGate(ConvGate(2, 3, 1), std=1.0), weighted=True),
    ).train()
    x, target = torch.randn(3, 1, 5, 6), torch.randn(3, 1, 5, 6)
    before, random = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    modes = [module.training for module in net.modules()]
    found = routing_gain(net, F.mse_loss, x, target)
    assert found.loss != found.loss_of_commonest
    assert [module.training for module in net.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())
    with torch.no_grad():
        assert float(F.mse_loss(net.eval()(x), target)) == pytest.approx(found.loss)
