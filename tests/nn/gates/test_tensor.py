from __future__ import annotations

import math

import pytest
import torch

import smoe
from smoe.rules import RoutingClassification

RC = RoutingClassification.released()


@pytest.mark.parametrize(
    ("num_experts", "num_selected", "expert_channels", "fan"), [(3, 1, 1, 9.0), (8, 2, 1, 12.0), (8, 2, 3, 4.0)]
)
@pytest.mark.parametrize("init", ["kaiming", "paper"])
def test_start_is_uniform_within_the_bound(init, num_experts, num_selected, expert_channels, fan):
    torch.manual_seed(0)
    # fan is 3 X / (E F)
    bound = math.sqrt(fan) if init == "kaiming" else fan
    gate = smoe.TensorGate(num_experts, num_selected, (64, 64), expert_channels, init=init)
    scores = gate.scores.detach()
    assert 0.999 * bound < scores.max() <= bound
    assert -bound <= scores.min() < -0.999 * bound
    assert scores.std() == pytest.approx(bound / math.sqrt(3), rel=0.02)


def test_smooth_start():
    torch.manual_seed(0)
    gate = smoe.TensorGate(16, 4, (64, 128), init="smooth", correlation_length=6.0)
    scores = gate.scores.detach()
    assert float(scores.std(correction=0)) == pytest.approx(2.0, rel=1e-4)  # sqrt(3 X / E) over sqrt(3)

    def share_of_equal_neighbours(gate: smoe.TensorGate) -> float:
        favourite = gate.scores.argmax(dim=0)
        return float((favourite[:, 1:] == favourite[:, :-1]).float().mean())

    assert share_of_equal_neighbours(gate) > 0.8
    assert share_of_equal_neighbours(smoe.TensorGate(16, 4, (64, 128))) < 0.1


GROUPS = torch.tensor([[0, 0, 1, 1, 1], [0, 2, 2, 1, 0], [2, 2, 0, 1, 2]])


@pytest.mark.parametrize(("num_experts", "init"), [(3, "smooth"), (6, "paper"), (8, "kaiming")])
def test_prior_of_groups_starts_with_each_groups_own_share(num_experts, init):
    torch.manual_seed(0)
    groups = GROUPS.repeat(6, 6)
    num_selected = num_experts // 3
    gate = smoe.TensorGate.from_prior(groups, num_experts, num_selected, 2.0, init=init)
    layer = smoe.SpatialMoE2d.from_experts(1, num_experts, num_selected, gate=gate, rule=RC)
    # 8 experts: shares of 3, 3 and 2
    shares = torch.tensor_split(torch.arange(num_experts), 3)
    indices = layer.routing().indices
    for group, share in enumerate(shares):
        assert torch.isin(indices[:, groups == group], share).all()


def test_prior_of_a_land_fraction():
    torch.manual_seed(0)
    land = torch.cat([torch.zeros(20, 40), torch.ones(20, 40), torch.full((20, 40), 0.5)])
    gate = smoe.TensorGate.from_prior(land, 4, 2, 2.0)
    indices = smoe.SpatialMoE2d.from_experts(1, 4, 2, gate=gate, rule=RC).routing().indices
    assert indices[:, :20].max() == 1
    assert indices[:, 20:40].min() == 2
    # A coast prefers neither: its four experts share its 2 x 800 places.
    assert torch.bincount(indices[:, 40:].flatten(), minlength=4).min() > 300


def test_prior_fades_with_its_strength():
    def start(strength: float) -> torch.Tensor:
        torch.manual_seed(0)
        return smoe.TensorGate.from_prior(GROUPS, 3, 1, strength).scores.detach()

    torch.manual_seed(0)
    plain = smoe.TensorGate(3, 1, (3, 5)).scores.detach()
    assert torch.equal(start(0.0), plain)
    pushes = [float((start(strength) - plain).abs().max()) for strength in (0.5, 1.0, 2.0)]
    assert pushes == pytest.approx([pushes[2] / 4, pushes[2] / 2, pushes[2]], rel=1e-5)


@pytest.mark.parametrize(
    ("groups", "options", "message"),
    [
        (GROUPS, {"strength": -1.0}, "strength must not be negative, got -1.0"),
        (GROUPS, {"num_experts": 2}, "3 groups need at least 3 experts, got 2"),
        (GROUPS - 1, {}, "group numbers start at 0, got -1"),
        (GROUPS.float(), {}, r"must lie in \[0, 1\], got \[0.0, 2.0\]; for group numbers give an integer map"),
        (torch.full((2, 2), torch.nan), {}, "the map of fractions has 4 NaN"),
    ],
)
def test_wrong_priors_are_refused(groups, options, message):
    with pytest.raises(ValueError, match=message):
        smoe.TensorGate.from_prior(groups, **{"num_experts": 3, "num_selected": 1, **options})


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((3, 4, (2, 2)), {}, r"num_selected must be in \[1, 3\], got 4"),
        ((3, 1, (2, -2)), {}, r"output grid, not \(2, -2\)"),
        ((3, 1, (2, 2), 0), {}, "expert_channels must be at least 1, got 0"),
        ((3, 1, (2, 2)), {"init": "normal"}, "init must be one of kaiming, paper, smooth, uniform, got 'normal'"),
        ((3, 1, (2, 2)), {"correlation_length": 2.0}, "belongs to init='smooth', but init is 'kaiming'"),
        ((3, 1, (2, 2)), {"init": "smooth", "correlation_length": -1.0}, "must be positive, got -1.0"),
    ],
)
def test_wrong_arguments_are_refused(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        smoe.TensorGate(*arguments, **options)
