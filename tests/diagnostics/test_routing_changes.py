from __future__ import annotations

import pytest
import torch
from torch import nn

from smoe.diagnostics import RoutingChanges, new_choices
from smoe.nn import NoisyGate, SpatialMoE2d, TensorGate


def _layer(scores: list[list[float]], num_selected: int, **options) -> SpatialMoE2d:
    """A layer on a grid of one row: `scores[expert][pixel]`."""
    gate = TensorGate(len(scores), num_selected, (1, len(scores[0])))
    with torch.no_grad():
        gate.scores.copy_(torch.tensor(scores)[:, None, :])
    return SpatialMoE2d.from_experts(1, len(scores), num_selected, gate=gate, **options)


def _set(layer: SpatialMoE2d, scores: list[list[float]]) -> None:
    assert isinstance(layer.gate, TensorGate)
    with torch.no_grad():
        layer.gate.scores.copy_(torch.tensor(scores)[:, None, :])


def test_shares_of_changed_and_reordered_choices():
    # Two of four experts at two pixels: {0, 1} and {0, 1}.
    layer = _layer([[4.0, 4.0], [3.0, 3.0], [2.0, 2.0], [1.0, 1.0]], 2)
    changes = RoutingChanges(layer)
    # The second pixel now has {2, 1}: expert 2 is new, one of four choices; its first place changed, one of four.
    _set(layer, [[4.0, 0.0], [3.0, 3.0], [2.0, 5.0], [1.0, 1.0]])
    values = changes.observe(layer)
    assert values == {
        "routing/changed": 0.25,
        "routing/changed_since_start": 0.25,
        "routing/reordered": 0.25,
        "routing/experts_in_use": 0.75,
    }
    # Only the order of the first pixel changes: nothing is new, two of four places have another expert.
    _set(layer, [[3.0, 0.0], [4.0, 3.0], [2.0, 5.0], [1.0, 1.0]])
    values = changes.observe(layer)
    assert values["routing/changed"] == 0.0
    assert values["routing/changed_since_start"] == 0.25
    assert values["routing/reordered"] == 0.5


def test_a_shared_gate_counts_once_and_noise_is_no_change():
    gate = NoisyGate(TensorGate(3, 1, (4, 5)))
    net = nn.Sequential(
        SpatialMoE2d.from_experts(1, 3, 1, gate=gate), SpatialMoE2d.from_experts(1, 3, 1, gate=gate)
    ).train()
    changes = RoutingChanges(net)
    assert len(changes.state_dict()["start"]) == 1
    assert changes.observe(net)["routing/changed"] == 0.0
    assert gate.training


def test_goes_on_from_its_state():
    layer = _layer([[1.0, 1.0], [0.0, 0.0]], 1)
    changes = RoutingChanges(layer)
    state = changes.state_dict()
    _set(layer, [[0.0, 1.0], [1.0, 0.0]])
    resumed = RoutingChanges(layer)
    resumed.load_state_dict(state)
    assert resumed.observe(layer) == changes.observe(layer)
    assert changes.observe(layer)["routing/changed_since_start"] == pytest.approx(0.5)


def test_only_gates_of_the_regions_grid_are_asked():
    layer = _layer([[4.0, 1.0], [3.0, 3.0]], 1)
    assert RoutingChanges(layer, torch.tensor([[0, 1]])).observe(layer)["routing/region_information"] == 1.0
    assert "routing/region_information" not in RoutingChanges(layer, torch.zeros(2, 2)).observe(layer)
    assert "routing/region_information" not in RoutingChanges(layer).observe(layer)


@pytest.mark.parametrize("pixels", [(6,), (2, 3), (1, 2, 3)])
def test_new_choices_on_any_grid(pixels: tuple[int, ...]):
    before = torch.tensor([[0, 1, 2, 0, 1, 2], [1, 2, 0, 1, 2, 0]]).view(2, *pixels)
    now = before.flip(0).clone()
    assert not new_choices(now, before).any()
    now.view(2, 6)[0, 4] = 3
    assert new_choices(now.numpy(), before).reshape(2, 6).tolist() == [[False] * 4 + [True, False], [False] * 6]


def test_routings_of_different_shapes_are_not_compared():
    with pytest.raises(ValueError, match=r"different shapes cannot be compared: \(1, 4\) and \(1, 5\)"):
        new_choices(torch.zeros(1, 4, dtype=torch.int32), torch.zeros(1, 5, dtype=torch.int32))
