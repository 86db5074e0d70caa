from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

import smoe
from smoe import SpatialGate, SpatialMoE2d, TensorGate
from smoe.nn import NoisyGate
from smoe.rules import RoutingClassification

RC = RoutingClassification.released()


def make_net(gate: SpatialGate | None = None) -> nn.Sequential:
    gate = gate or TensorGate(4, 2, (5, 5))
    return nn.Sequential(
        SpatialMoE2d.from_experts(1, 4, 2, gate=gate, rule=RC),
        SpatialMoE2d.from_experts(2, 4, 2, gate=gate, rule=RC),
        SpatialMoE2d.from_experts(2, 4, 2, spatial_shape=(5, 5), rule=RC, order="score"),
    )


def gates(net: nn.Sequential) -> list[nn.Module]:
    return [layer.gate for layer in net if isinstance(layer, SpatialMoE2d)]


def test_a_shared_gate_stands_once_in_the_state_dict() -> None:
    net = make_net()
    gate = ["gate.scores", "gate.order_code"]
    expected = ["0.weight", *(f"0.{key}" for key in gate), "1.weight", "2.weight", *(f"2.{key}" for key in gate)]
    assert list(net.state_dict()) == expected
    # And again: what one call has seen must not leak into the next.
    assert list(net.state_dict()) == expected
    assert list(net[1].state_dict()) == ["weight", *gate]
    assert sum(parameter.numel() for parameter in net.parameters()) == 4 * 9 * (1 + 2 + 2) + 2 * 4 * 25


@pytest.mark.parametrize("assign", [False, True])
def test_it_loads_back_into_all_its_layers(assign: bool) -> None:
    net, other = make_net(), make_net()
    other.load_state_dict(net.state_dict(), assign=assign)
    first, second, third = gates(other)
    assert first is second and third is not first
    for ours, theirs in zip(gates(other), gates(net), strict=True):
        assert torch.equal(ours.scores, theirs.scores)  # type: ignore[arg-type]


def test_a_gate_that_is_missing_altogether_is_missed() -> None:
    net = make_net()
    state = net.state_dict()
    net.load_state_dict(state)
    del state["0.gate.scores"], state["0.gate.order_code"]
    missing = '"0.gate.scores", "0.gate.order_code", "1.gate.scores", "1.gate.order_code"'
    with pytest.raises(RuntimeError, match=rf"Missing key\(s\) in state_dict: {missing}"):
        net.load_state_dict(state)


def test_the_gate_within_a_noisy_gate_is_another_gate() -> None:
    inner = TensorGate(4, 2, (5, 5))
    net = nn.Sequential(
        SpatialMoE2d.from_experts(1, 4, 2, gate=NoisyGate(inner), rule=RC),
        SpatialMoE2d.from_experts(2, 4, 2, gate=inner, rule=RC),
    )
    assert [key for key in net.state_dict() if key.endswith("scores")] == ["0.gate.gate.scores", "1.gate.scores"]
    net.load_state_dict(net.state_dict())


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copy_shares_its_own_gate(duplicate) -> None:
    net = make_net()
    net.state_dict()
    twin = duplicate(net)
    first, second, _ = gates(twin)
    assert first is second and first is not gates(net)[0]
    assert list(twin.state_dict()) == list(net.state_dict())
    with torch.no_grad():
        first.scores.zero_()  # type: ignore[operator]
    assert not twin.state_dict()["0.gate.scores"].any()


def one_embedding() -> nn.Sequential:
    plain = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1))
    return smoe.convert(plain, example_input=torch.zeros(1, 1, 5, 5))  # type: ignore[return-value]


def embeddings(net: nn.Module) -> list[nn.Module]:
    return [layer.gate.embedding for layer in net.modules() if isinstance(layer, SpatialMoE2d)]  # type: ignore[union-attr]


def test_a_shared_embedding_stands_once_in_the_state_dict() -> None:
    net = one_embedding()
    for _ in range(2):
        assert [key for key in net.state_dict() if "embedding.values" in key] == ["0.gate.embedding.values"]
    assert [key for key in net[1].state_dict() if "embedding.values" in key] == ["gate.embedding.values"]
    assert [name for name, _ in net.named_buffers() if "embedding.values" in name] == ["0.gate.embedding.values"]
    assert len(set(map(id, embeddings(net.to(torch.float64))))) == 1
    # Without the layer that came first, another has it.
    assert [key for key in net[1:].state_dict() if "embedding.values" in key] == ["1.gate.embedding.values"]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
@pytest.mark.parametrize("assign", [False, True])
def test_a_shared_embedding_is_copied_and_loaded(duplicate, assign: bool) -> None:
    net = one_embedding()
    state = net.state_dict()
    twin = duplicate(one_embedding())
    twin.load_state_dict(state, assign=assign)
    first, *others = embeddings(twin)
    assert all(other is first for other in others)
    assert len([name for name, _ in twin.named_buffers() if "embedding.values" in name]) == 1
    assert torch.equal(first.values, state["0.gate.embedding.values"])  # type: ignore[arg-type]
    x = torch.randn(2, 1, 5, 5)
    assert torch.equal(twin.eval()(x), net.eval()(x))
    del state["0.gate.embedding.values"]
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "0.gate.embedding.values"'):
        twin.load_state_dict(state)


def test_a_converted_network_is_saved_by_safetensors(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    net, other = one_embedding(), one_embedding()
    safetensors.save_file(net.state_dict(), tmp_path / "net.safetensors")
    other.load_state_dict(safetensors.load_file(tmp_path / "net.safetensors"))
    assert torch.equal(embeddings(other)[2].values, embeddings(net)[0].values)  # type: ignore[arg-type]
