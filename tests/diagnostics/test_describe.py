"""Reports on gates: certainty, changes from epoch to epoch."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from smoe.diagnostics import (
    RoutingGain,
    RoutingWatch,
    describe,
    fixed_choices,
    fixed_gates,
    layer_certainty,
    layers_by_gate,
    new_choices,
    routing_certainty,
)
from smoe.diagnostics._choices import useless_routing
from smoe.nn import SpatialMoE2d, TensorGate
from smoe.ops._routing import Routing, family_members, top_experts
from smoe.rules import RoutingClassification, StraightThrough
from smoe_paper.baselines.layers import ConvGate
from smoe_paper.baselines.routing_losses import ScoreGate


def make_net() -> nn.Sequential:
    gate = TensorGate(4, 2, (5, 6))
    return nn.Sequential(
        SpatialMoE2d.from_experts(1, 4, 2, gate=gate),
        SpatialMoE2d.from_experts(2, 4, 2, gate=gate, rule=RoutingClassification.released()),
        SpatialMoE2d.from_experts(2, 3, 1, gate=ConvGate(2, 3, 1)),
    )


def first_layer(net: nn.Sequential) -> SpatialMoE2d:
    layer = net[0]
    assert isinstance(layer, SpatialMoE2d)
    return layer


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(3, 1, 5, 6), torch.randn(3, 1, 5, 6)


def test_a_shared_gate_is_described_once() -> None:
    net = make_net()
    report = describe(net)
    shared, looking = report.gates
    assert shared.layers == ("0", "1") and shared.grid == (5, 6)
    assert shared.num_used == first_layer(net).routing().indices.unique().numel()
    assert shared.certainty is not None and 0.0 < shared.certainty < 1.0
    assert shared.changed is None
    assert (looking.grid, looking.num_used, looking.certainty) == (None, None, None)
    assert report.gains is None and report.warnings == ()
    assert str(report).splitlines()[2].startswith("without data nothing can be said about whether the routing learned")
    assert str(report).splitlines()[0].startswith("TensorGate of 0, 1: 5 x 6, 2 of 4 experts, rule rc, 4 in use, cert")


def test_a_batch_tells_what_the_routing_is_worth() -> None:
    net = make_net()
    report = describe(net, F.mse_loss, *batch())
    looking = report.gates[1]
    assert report.gains is not None and [gain.layer for gain in report.gains] == ["0", "1", "2", "all 3 layers"]
    assert looking.num_used is not None and looking.certainty is not None
    assert "single convolution in place of 2 the loss is" in str(report)
    with pytest.raises(ValueError, match="must be given together"):
        describe(net, F.mse_loss)


def test_changes_since_an_earlier_report() -> None:
    net = make_net()
    start = describe(net)
    unchanged = describe(net, since=start)
    assert unchanged.gates[0].changed == 0.0
    assert [text for text in unchanged.warnings if "the gate of 0 has changed none of its choices" in text]
    with torch.no_grad():
        scores = first_layer(net).gate.get_parameter("scores")
        scores.copy_(-scores)
    # The two best experts of four become the two worst.
    changed = describe(net, since=start)
    assert changed.gates[0].changed == 1.0 and changed.warnings == ()
    assert "100.0% changed" in str(changed)


def test_a_routing_that_is_worth_nothing_is_warned_of() -> None:
    gate = TensorGate(4, 2, (5, 6), order="families", init="uniform")
    with torch.no_grad():
        gate.scores.zero_()
    net = SpatialMoE2d.from_experts(1, 4, 2, gate=gate, rule="straight_through")
    x = torch.randn(8, 1, 5, 6)
    with torch.no_grad():
        target = net.eval()(x) + torch.randn(8, 2, 5, 6)
    report = describe(net, F.mse_loss, x, target)
    assert report.gates[0].num_used == 2
    (warning,) = report.warnings
    assert warning.startswith("the network is as good or better with single convolutions in place of its SMoE layers")
    # Too few samples tell nothing, so that there is nothing to warn of.
    few = describe(net, F.mse_loss, x[:3], target[:3])
    assert few.warnings == () and "3 samples do not tell which is better" in str(few)
    # Nor does a large difference between samples of very different losses.
    assert useless_routing([RoutingGain("layer", 2e-16, 3.6e-5, 2.5e-5, 32)]) == []


def test_a_model_without_layers() -> None:
    conv = nn.Conv2d(1, 1, 1)
    assert str(describe(conv)) == "the model has no SMoE layers" and RoutingWatch(conv).observe(conv) == {}


def test_a_watch_warns_of_each_layer_once_and_continues_from_its_state() -> None:
    net = make_net()
    watch = RoutingWatch(net)
    texts: list[list[str]] = []
    for _ in range(5):
        assert "routing/certainty" in watch.observe(net)
        texts.append(watch.new_warnings())
        state = watch.state_dict()
        watch = RoutingWatch(net)
        watch.load_state_dict(state)
    assert [len(found) for found in texts] == [0, 0, 1, 0, 0] and "has changed none" in texts[2][0]
    watch.finish([RoutingGain("0", 1.0, 0.9, 0.1, 8, is_alone=True), RoutingGain("all 2 layers", 1.0, 2.0, 0.1, 8)])
    assert watch.new_warnings() == []
    watch.finish([RoutingGain("0", 1.0, 2.0, 0.1, 8, is_alone=True), RoutingGain("all 2 layers", 1.0, 1.0, 0.1, 8)])
    assert watch.new_warnings()[0].startswith("the network is as good or better with single convolutions")


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
    routing = Routing(indices, scores)
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
    changes = RoutingWatch(layer)
    # The second pixel now has {2, 1}: expert 2 is new, one of four choices; its first place changed, one of four.
    _set(layer, [[4.0, 0.0], [3.0, 3.0], [2.0, 5.0], [1.0, 1.0]])
    values = changes.observe(layer)
    assert {name: values[name] for name in list(values)[:-1]} == {
        "routing/changed": 0.25,
        "routing/changed_since_start": 0.25,
        "routing/reordered": 0.25,
        "routing/experts_in_use": 0.75,
    }
    # Only the order of the first pixel changes: nothing is new, two of four places have another expert.
    state, changes = changes.state_dict(), RoutingWatch(layer)
    changes.load_state_dict(state)
    _set(layer, [[3.0, 0.0], [4.0, 3.0], [2.0, 5.0], [1.0, 1.0]])
    values = changes.observe(layer)
    assert values["routing/changed"] == 0.0
    assert values["routing/changed_since_start"] == 0.25
    assert values["routing/reordered"] == 0.5


def test_a_film_of_any_training_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = SpatialMoE2d.from_experts(1, 300, 2, gate=TensorGate(300, 2, (7, 9)))
    monkeypatch.setattr("smoe.diagnostics._choices._FRAME_CHOICES", 2 * 3 * 3)
    watch = RoutingWatch(layer)
    numbers = []
    for _ in range(100):
        watch.observe(layer)
        numbers.append(len(watch.state_dict()["film"]))
    assert max(numbers) <= 26
    film = watch.state_dict()["film"]
    assert sorted(film) == [*range(0, 97, 8), 100]
    assert film[100][""].shape == (2, 3, 3)
    assert torch.equal(film[100][""].long(), layer.routing().indices[:, ::3, ::3])


def test_only_gates_of_the_regions_grid_are_asked():
    layer = _layer([[4.0, 1.0], [3.0, 3.0]], 1)
    assert RoutingWatch(layer, torch.tensor([[0, 1]])).observe(layer)["routing/region_information"] == 1.0
    assert "routing/region_information" not in RoutingWatch(layer, torch.zeros(2, 2)).observe(layer)
    assert "routing/region_information" not in RoutingWatch(layer).observe(layer)


@pytest.mark.parametrize("pixels", [(6,), (2, 3), (1, 2, 3)])
def test_new_choices_on_any_grid(pixels: tuple[int, ...]):
    before = torch.tensor([[0, 1, 2, 0, 1, 2], [1, 2, 0, 1, 2, 0]]).view(2, *pixels)
    now = before.flip(0).clone()
    assert not new_choices(now, before).any()
    now.view(2, 6)[0, 4] = 3
    assert new_choices(now.numpy(), before).reshape(2, 6).tolist() == [[False] * 4 + [True, False], [False] * 6]
    with pytest.raises(ValueError, match="different shapes cannot be compared"):
        new_choices(now[:1], before)


def test_gates_with_their_layers() -> None:
    shared, looking = ScoreGate(TensorGate(3, 1, (4, 5)), std=100.0), ConvGate(1, 3, 1)
    net = nn.Sequential(*(SpatialMoE2d.from_experts(1, 3, 1, gate=gate) for gate in (shared, looking, shared))).train()
    assert {gate: list(layers) for gate, layers in layers_by_gate(net).items()} == {shared: ["0", "2"], looking: ["1"]}
    assert fixed_gates(net) == {"0": shared}
    # Without noise, although the net trains, and as integers that take little room.
    choices = fixed_choices(net)
    assert choices["0"].shape == (1, 4, 5) and choices["0"].dtype == torch.int32
    assert torch.equal(choices["0"], fixed_choices(net)["0"])
    assert shared.training
