"""Factorised gates: scores, starts, priors, shared embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import smoe
from definitions import gate_scores
from smoe.nn._gate import smooth_fields
from smoe.nn._gates import FactorisedGate
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


GRID = (6, 7)


def test_scores_are_products_of_keys_and_embedding() -> None:
    torch.manual_seed(0)
    gate = FactorisedGate(5, 2, GRID, rank=3, scale=4.0)
    found = gate(None).scores[0]
    for expert in range(5):
        for pixel in range(42):
            expected = sum(gate.keys[expert, r] * gate.embedding.values[r].flatten()[pixel] for r in range(3))
            torch.testing.assert_close(found[expert, pixel], 4.0 * expected)


def test_starts() -> None:
    torch.manual_seed(0)
    uniform = FactorisedGate(7, 3, GRID, init="uniform")(None).indices[0]
    assert torch.equal(uniform, torch.tensor([0, 3, 5]).int()[:, None].expand(3, 42))
    # A random start leaves all candidates likely.
    scores = FactorisedGate(30, 10, (32, 32))(None).scores.detach()
    assert 0.05 < float(scores.std()) < 0.2
    assert float(scores[0].unflatten(0, (10, 3)).softmax(dim=1).max()) < 0.6
    rough, smooth = (
        FactorisedGate(12, 4, (32, 32), init=init)(None).indices.view(4, 32, 32) for init in ("kaiming", "smooth")
    )
    changes = [float((indices[:, 1:] != indices[:, :-1]).float().mean()) for indices in (rough, smooth)]
    assert changes[1] < 0.5 * changes[0]


def test_a_prior_decides_the_start() -> None:
    torch.manual_seed(0)
    groups = torch.zeros(8, 12, dtype=torch.int64)
    groups[:, 4:] = 1
    indices = FactorisedGate.from_prior(groups, 4, 2, strength=20.0)(None).indices.view(2, 8, 12)
    for slot in range(2):
        assert torch.equal(indices[slot], 2 * slot + groups)


@pytest.mark.parametrize("rule", ["straight_through", "frozen"])
def test_passes_that_need_no_scores_select_the_same_without_them(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = smoe.SpatialMoE2d.from_experts(3, 6, 2, gate=FactorisedGate(6, 2, (5, 7)), rule=rule)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    input, indices = torch.randn(2, 3, 5, 7), layer.routing().indices
    expected = layer._select(input, indices.flatten(1)[None].to(torch.int32))

    def refuse(self: FactorisedGate, input: torch.Tensor | None = None) -> torch.Tensor:
        raise AssertionError("scores were computed")

    monkeypatch.setattr(FactorisedGate, "_scores_of", refuse)
    assert torch.equal(layer.eval()(input), expected)
    if rule == "frozen":
        assert torch.equal(layer.train()(input), expected)


REGION_MAP = torch.tensor([[0, 1, 1], [2, 0, 1]])


def test_regions_share_out_more_experts():
    gate = smoe.FixedGate.from_region_map(REGION_MAP)
    assert torch.equal(smoe.SpatialMoE2d.from_experts(1, 3, 1, gate=gate, rule=RC).routing().indices[0], REGION_MAP)
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


def correlation(fields: torch.Tensor, distance: int, dim: int) -> float:
    size = fields.shape[dim] - distance
    return float((fields.narrow(dim, 0, size) * fields.narrow(dim, distance, size)).mean() / fields.var(correction=0))


@pytest.mark.parametrize(("dim", "length"), [(1, 6.0), (2, 2.0)])
def test_correlation_falls_as_a_gaussian_of_the_length(dim, length):
    torch.manual_seed(0)
    fields = smooth_fields((64, 96, 96), length)
    assert float(fields.std(correction=0)) == pytest.approx(1.0, rel=1e-5)
    for distance in (int(length / 2), int(length), int(2 * length)):
        expected = math.exp(-((distance / length) ** 2) / 2)
        assert correlation(fields, distance, dim) == pytest.approx(expected, abs=0.05)


def test_width_is_periodic_and_height_is_not():
    torch.manual_seed(0)
    fields = smooth_fields((256, 48, 48), 4.0)
    assert float((fields[:, :, 0] * fields[:, :, -1]).mean()) == pytest.approx(math.exp(-1 / 32), abs=0.1)
    assert float((fields[:, 0] * fields[:, -1]).mean()) == pytest.approx(0.0, abs=0.1)


def prior(groups: torch.Tensor, num_experts: int = 3, strength: float = 2.0) -> smoe.TensorGate:
    return smoe.TensorGate.from_prior(groups, num_experts, 1, strength)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: prior(GROUPS, strength=-1.0), "strength must not be negative, got -1.0"),
        (lambda: prior(GROUPS, 2), "3 groups need at least 3 experts, got 2"),
        (lambda: prior(GROUPS - 1), "group numbers start at 0, got -1"),
        (lambda: prior(GROUPS.float()), r"in \[0, 1\], got \[0.0, 2.0\]; for group numbers give an integer map"),
        (lambda: prior(torch.full((2, 2), torch.nan)), "the map of fractions has 4 NaN"),
        (lambda: smoe.TensorGate(3, 4, (2, 2)), r"num_selected must be in \[1, 3\], got 4"),
        (lambda: smoe.TensorGate(3, 1, (2, -2)), r"output grid, not \(2, -2\)"),
        (lambda: smoe.TensorGate(3, 1, (2, 2), 0), "expert_channels must be at least 1, got 0"),
        (
            lambda: smoe.TensorGate(3, 1, (2, 2), init="normal"),  # type: ignore[arg-type]
            "init must be one of kaiming, paper, smooth, uniform, got 'normal'",
        ),
        (lambda: smoe.TensorGate(3, 1, (2, 2), correlation_length=2.0), "belongs to init='smooth', but init is 'kaim"),
        (lambda: smoe.TensorGate(3, 1, (2, 2), init="smooth", correlation_length=-1.0), "must be positive, got -1.0"),
        (lambda: FactorisedGate(4, 2, GRID, scale=0.0), "scale must be positive and finite, got 0.0"),
        (lambda: FactorisedGate(4, 2, GRID, rank=0), "rank must be"),
        (lambda: FactorisedGate(4, 2, GRID, init="paper"), "init must be one of uniform, kaiming, smooth, got 'paper'"),
        (lambda: FactorisedGate(4, 2), "give spatial_shape"),
        (
            lambda: FactorisedGate(4, 2, (3, 3), embedding=FactorisedGate(4, 2, GRID).embedding),
            r"grid of \(6, 7\), but spatial_shape is \(3, 3\)",
        ),
        (lambda: smoe.FixedGate(torch.zeros(2), 1), r"floating \(X, \*grid\), got torch.float32 of shape \(2,\)"),
        (lambda: smoe.FixedGate(torch.zeros(3, 2, 2, dtype=torch.int64), 1), r"floating .* got torch\.int64"),
        (lambda: smoe.FixedGate.from_region_map(REGION_MAP.float()), r"holds integers, got torch\.float32"),
        (
            lambda: smoe.FixedGate.from_region_map(REGION_MAP, num_selected=2),
            "3 regions share 3 experts, 1 at least for each, but num_selected is 2",
        ),
    ],
)
def test_what_is_wrong_is_refused(make: Callable[[], smoe.SpatialGate], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
