from __future__ import annotations

import pytest
import torch

import smoe
from definitions import gate_scores
from smoe.rules import RoutingClassification

RC = RoutingClassification.released()

REGION_MAP = torch.tensor([[0, 1, 1], [2, 0, 1]])


def test_region_map_is_the_routing():
    gate = smoe.FixedGate.from_region_map(REGION_MAP)
    layer = smoe.SpatialMoE2d.from_experts(1, 3, 1, gate=gate, rule=RC)
    assert torch.equal(layer.routing().indices[0], REGION_MAP)


def test_regions_share_out_more_experts():
    gate = smoe.FixedGate.from_region_map(REGION_MAP, num_experts=7, num_selected=2)
    indices = smoe.SpatialMoE2d.from_experts(1, 7, 2, gate=gate, rule=RC).routing().indices
    # Shares of 7 experts for 3 regions: 0-2, 3-4, 5-6; of equal scores the lower number wins.
    first_of_share = torch.tensor([0, 3, 5])[REGION_MAP]
    assert torch.equal(indices, torch.stack([first_of_share, first_of_share + 1]))


@pytest.mark.parametrize(
    "make", [lambda: smoe.FixedGate.from_region_map(REGION_MAP), lambda: smoe.FixedGate.random(3, 1, (2, 3))]
)
def test_does_not_learn_but_is_saved(make):
    layer = smoe.SpatialMoE2d.from_experts(1, 3, 1, gate=make(), rule=RC)
    assert not list(layer.gate.parameters())
    before = gate_scores(layer).clone()
    layer(torch.randn(2, 1, 2, 3)).pow(2).mean().backward()
    torch.optim.SGD(layer.parameters(), lr=1.0).step()
    assert torch.equal(gate_scores(layer), before)
    other = smoe.SpatialMoE2d.from_experts(1, 3, 1, gate=smoe.FixedGate(torch.zeros(3, 2, 3), 1), rule=RC)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(gate_scores(other), before)


def test_random_start_is_that_of_a_tensor_gate():
    torch.manual_seed(0)
    frozen = smoe.FixedGate.random(3, 1, (4, 5), init="paper")
    torch.manual_seed(0)
    assert torch.equal(frozen.scores, smoe.TensorGate(3, 1, (4, 5), init="paper").scores)


def test_wrong_arguments():
    with pytest.raises(ValueError, match=r"floating \(X, \*grid\), got torch.float32 of shape \(2,\)"):
        smoe.FixedGate(torch.zeros(2), 1)
    with pytest.raises(ValueError, match=r"floating .* got torch\.int64"):
        smoe.FixedGate(torch.zeros(3, 2, 2, dtype=torch.int64), 1)
    with pytest.raises(ValueError, match=r"a region map holds integers, got torch\.float32"):
        smoe.FixedGate.from_region_map(REGION_MAP.float())
    with pytest.raises(ValueError, match="3 regions share 3 experts, 1 at least for each, but num_selected is 2"):
        smoe.FixedGate.from_region_map(REGION_MAP, num_selected=2)
