from __future__ import annotations

import math

import pytest
import torch

from smoe.diagnostics import layer_certainty, routing_certainty
from smoe.nn import SpatialMoE2d, TensorGate
from smoe.ops._routing import Routing, family_members, top_experts
from smoe.rules import StraightThrough


def certainty_by_definition(scores: torch.Tensor, indices: torch.Tensor, temperature: float, families: bool) -> float:
    """In loops: a selected expert against the best of its rivals."""
    members = family_members(scores.shape[1], indices.shape[1]).tolist()
    found: list[float] = []
    for sample in range(len(indices)):
        for slot in range(indices.shape[1]):
            for pixel in range(indices.shape[2]):
                chosen = indices[sample, :, pixel].tolist()
                rivals = members[slot] if families else range(scores.shape[1])
                of_rivals = [float(scores[sample, expert, pixel]) for expert in rivals if expert not in chosen]
                if not of_rivals:
                    found.append(1.0)
                    continue
                ours, best = float(scores[sample, chosen[slot], pixel]), max(of_rivals)
                p = 1.0 / (1.0 + math.exp((best - ours) / temperature))
                found.append(p - (1.0 - p))
    return sum(found) / len(found)


@pytest.mark.parametrize(
    ("num_experts", "num_selected", "order", "temperature"),
    [
        (5, 1, "score", 1.0),
        (5, 2, "index", 0.3),
        (7, 3, "families", 0.3),
        (4, 4, "score", 1.0),
        (3, 2, "families", 1.0),
    ],
)
def test_certainty_equals_its_definition(
    num_experts: int, num_selected: int, order: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smoe.diagnostics._choices._PIXELS_AT_ONCE", 3)
    scores = torch.randn(2, num_experts, 7)
    indices = top_experts(scores, num_selected, order)  # type: ignore[arg-type]
    routing = Routing(indices, scores, scores, scores)
    families = order == "families"
    expected = certainty_by_definition(scores, indices, temperature, families)
    assert routing_certainty(routing, families=families, temperature=temperature) == pytest.approx(expected, abs=1e-6)


def test_a_tie_is_no_certainty_and_the_rule_has_the_temperature() -> None:
    gate = TensorGate(4, 2, (3, 3), order="families")
    layer = SpatialMoE2d.from_experts(1, 4, 2, gate=gate, rule=StraightThrough(temperature=0.5)).eval()
    with torch.no_grad():
        gate.scores.zero_()
        assert layer_certainty(layer) == 0.0
        gate.scores[0] = gate.scores[3] = 1.0
    # A margin of 1 at temperature 0.5: tanh(1).
    assert layer_certainty(layer) == pytest.approx(math.tanh(1.0))
