"""Factorised gates: scores, starts, priors, shared embeddings."""

from __future__ import annotations

import pytest
import torch

import smoe
from smoe.nn._gates import FactorisedGate

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


def test_gates_share_an_embedding() -> None:
    first = FactorisedGate(4, 2, GRID)
    second = FactorisedGate(9, 3, embedding=first.embedding, scale=10.0)
    assert second.spatial_shape == GRID
    with pytest.raises(ValueError, match=r"grid of \(6, 7\), but spatial_shape is \(3, 3\)"):
        FactorisedGate(4, 2, (3, 3), embedding=first.embedding)


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
