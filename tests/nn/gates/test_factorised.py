"""Factorised gates: scores, starts, priors, shared embeddings."""

from __future__ import annotations

import pytest
import torch

import smoe
from smoe.nn._gates import FactorisedGate, PixelEmbedding

GRID = (6, 7)


def test_scores_are_products_of_keys_and_embedding() -> None:
    torch.manual_seed(0)
    gate = FactorisedGate(5, 2, GRID, rank=3, scale=4.0)
    found = gate(None).scores[0]
    for expert in range(5):
        for pixel in range(42):
            expected = sum(gate.keys[expert, r] * gate.embedding.values[r].flatten()[pixel] for r in range(3))
            torch.testing.assert_close(found[expert, pixel], 4.0 * expected)


def test_a_uniform_start_selects_the_first_expert_of_each_family() -> None:
    gate = FactorisedGate(7, 3, GRID, init="uniform")
    assert torch.equal(gate(None).indices[0], torch.tensor([0, 3, 5]).int()[:, None].expand(3, 42))


def test_a_random_start_leaves_all_candidates_likely() -> None:
    torch.manual_seed(0)
    gate = FactorisedGate(30, 10, (32, 32))
    scores = gate(None).scores
    assert 0.05 < float(scores.detach().std()) < 0.2
    assert float(scores[0].detach().unflatten(0, (10, 3)).softmax(dim=1).max()) < 0.6


def test_a_smooth_start_selects_alike_at_neighbours() -> None:
    torch.manual_seed(0)

    def changes(init) -> float:
        indices = FactorisedGate(12, 4, (32, 32), init=init).route(None).indices.view(4, 32, 32)
        return float((indices[:, 1:] != indices[:, :-1]).float().mean())

    assert changes("smooth") < 0.5 * changes("kaiming")


def test_gates_share_an_embedding() -> None:
    torch.manual_seed(0)
    first = FactorisedGate(4, 2, GRID)
    second = FactorisedGate(9, 3, embedding=first.embedding, scale=10.0)
    assert second.spatial_shape == GRID
    (first(None).scores.sum() + second(None).scores.sum()).backward()
    together = first.embedding.values.grad
    assert together is not None
    alone = [torch.autograd.grad(gate(None).scores.sum(), first.embedding.values)[0] for gate in (first, second)]
    torch.testing.assert_close(together, alone[0] + alone[1])
    with pytest.raises(ValueError, match=r"grid of \(6, 7\), but spatial_shape is \(3, 3\)"):
        FactorisedGate(4, 2, (3, 3), embedding=first.embedding)


def test_a_prior_decides_the_start() -> None:
    torch.manual_seed(0)
    groups = torch.zeros(GRID, dtype=torch.int64)
    groups[:, 3:] = 1
    gate = FactorisedGate.from_prior(groups, 4, 2, strength=10.0)
    indices = gate(None).indices.view(2, *GRID)
    for slot in range(2):
        assert torch.equal(indices[slot], 2 * slot + groups)


def test_a_layer_with_a_factorised_gate_is_saved_and_loaded() -> None:
    torch.manual_seed(0)
    make = lambda: smoe.SpatialMoE2d.from_experts(2, 6, 3, gate=FactorisedGate(6, 3, GRID), rule="straight_through")  # noqa: E731
    layer, other = make(), make()
    other.load_state_dict(layer.state_dict())
    x = torch.randn(2, 2, *GRID)
    assert torch.equal(layer.eval()(x), other.eval()(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0.0}, "scale must be positive and finite, got 0.0"),
        ({"rank": 0}, "rank must be"),
        ({"init": "paper"}, "init must be one of uniform, kaiming, smooth, got 'paper'"),
        ({"spatial_shape": None}, "give spatial_shape"),
    ],
)
def test_wrong_numbers_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FactorisedGate(**{"num_experts": 4, "num_selected": 2, "spatial_shape": GRID, **options})


def test_an_embedding_starts_anew() -> None:
    torch.manual_seed(0)
    embedding = PixelEmbedding(3, GRID, init="kaiming")
    before = embedding.values.clone()
    embedding.reset_parameters()
    assert not torch.equal(before, embedding.values)


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

    monkeypatch.setattr(FactorisedGate, "scores_of", refuse)
    assert torch.equal(layer.eval()(input), expected)
    if rule == "frozen":
        assert torch.equal(layer.train()(input), expected)
