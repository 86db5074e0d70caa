from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from smoe.diagnostics import RoutingGain, RoutingWatch, describe
from smoe.diagnostics._describe import useless_routing
from smoe.nn import SpatialMoE2d, TensorGate
from smoe.rules import RoutingClassification
from smoe_paper.baselines.gates import ConvGate


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
    assert (shared.changed, shared.damped) == (None, None)
    assert (looking.grid, looking.num_used, looking.certainty) == (None, None, None)
    assert report.gains is None and report.warnings == ()
    assert str(report).splitlines()[2].startswith("without data nothing can be said about whether the routing learned")
    assert str(report).splitlines()[0].startswith("TensorGate of 0, 1: 5 x 6, 2 of 4 experts, rule rc, 4 in use, cert")


def test_a_batch_tells_what_the_routing_is_worth() -> None:
    net = make_net().train()
    before = copy.deepcopy(net.state_dict())
    report = describe(net, F.mse_loss, *batch())
    shared, looking = report.gates
    assert report.gains is not None and [gain.layer for gain in report.gains] == ["0", "1", "2", "all 3 layers"]
    assert looking.num_used is not None and looking.certainty is not None
    # The first layer damps nothing, the second nearly all above the quantile of 0.3.
    assert shared.damped is not None and 0.5 < shared.damped <= 0.75
    assert any("damping silences" in text and "in 1:" in text for text in report.warnings)
    assert "of the errors damped" in str(report) and "single convolution in place of 2 the loss is" in str(report)
    assert net.training and all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())
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
    assert str(describe(nn.Conv2d(1, 1, 1))) == "the model has no SMoE layers"


def test_a_watch_warns_of_each_layer_once_and_continues_from_its_state() -> None:
    net, (x, target) = make_net(), batch()
    watch = RoutingWatch(net)
    texts: list[list[str]] = []
    for _ in range(5):
        values = watch.observe(net)
        measured = watch.measure(net, F.mse_loss, x, target)
        assert "routing/certainty" in values and "routing/damped" in measured
        texts.append(watch.new_warnings())
        state = watch.state_dict()
        watch = RoutingWatch(net)
        watch.load_state_dict(state)
    assert [len(found) for found in texts] == [0, 0, 2, 0, 0]
    assert "has changed none" in texts[2][0] and "damping silences" in texts[2][1]
    watch.finish([RoutingGain("0", 1.0, 0.9, 0.1, 8, is_alone=True), RoutingGain("all 2 layers", 1.0, 2.0, 0.1, 8)])
    assert watch.new_warnings() == []
    watch.finish([RoutingGain("0", 1.0, 2.0, 0.1, 8, is_alone=True), RoutingGain("all 2 layers", 1.0, 1.0, 0.1, 8)])
    assert watch.new_warnings()[0].startswith("the network is as good or better with single convolutions")


def test_a_model_without_gates_has_nothing_to_watch() -> None:
    conv = nn.Conv2d(1, 1, 1)
    watch = RoutingWatch(conv)
    assert watch.observe(conv) == watch.measure(conv, F.mse_loss, *batch()) == {}
