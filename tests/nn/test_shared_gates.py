"""Gates and embeddings that several layers share stand once in a state_dict, and stay shared."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import smoe
from smoe import SpatialMoE2d, TensorGate
from smoe_paper.baselines.routing_losses import ScoreGate


def one_gate() -> nn.Sequential:
    gate = TensorGate(4, 2, (5, 5))
    options: tuple[dict[str, Any], ...] = ({"gate": gate}, {"gate": gate}, {"spatial_shape": (5, 5), "order": "score"})
    channels = (1, 2, 2)
    layers = (SpatialMoE2d.from_experts(n, 4, 2, rule="rc", **each) for n, each in zip(channels, options, strict=True))
    return nn.Sequential(*layers)


def one_embedding() -> nn.Sequential:
    plain = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1))
    return smoe.convert(plain, example_input=torch.zeros(1, 1, 5, 5))  # type: ignore[return-value]


# A network, the tensor that its first two layers share, and how many layers do.
CASES = {"gate": (one_gate, "gate.scores", 2), "embedding": (one_embedding, "gate.embedding.values", 3)}
DUPLICATES = [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))]


def holders(net: nn.Sequential, name: str) -> list[nn.Module]:
    """The modules that hold the tensor, layer by layer."""
    return [layer.get_submodule(name.rpartition(".")[0]) for layer in net]


@pytest.mark.parametrize("case", CASES)
def test_what_is_shared_stands_once_in_the_state_dict(case: str) -> None:
    make, name, number = CASES[case]
    net = make()
    expected = [f"0.{name}", *(f"{place}.{name}" for place in range(number, 3))]
    # Twice: what one call has seen must not leak into the next.
    for _ in range(2):
        assert [key for key in net.state_dict() if key.endswith(name)] == expected
    # Without the layer that came first, another has it.
    assert next(key for key in net[1:].state_dict() if key.endswith(name)) == f"1.{name}"
    assert [key for key in net[1].state_dict() if key.endswith(name)] == [name]
    assert len({id(holder) for holder in holders(net.to(torch.float64), name)[:number]}) == 1


@pytest.mark.parametrize("duplicate", DUPLICATES)
@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_what_is_shared_is_copied_and_loaded(case: str, duplicate: Callable[..., nn.Sequential], assign: bool) -> None:
    make, name, number = CASES[case]
    net, other = make(), make()
    state = net.state_dict()
    twin = duplicate(other)
    twin.load_state_dict(state, assign=assign)
    first = holders(twin, name)[0]
    assert all(holder is first for holder in holders(twin, name)[:number])
    assert first is not holders(other, name)[0]
    assert list(twin.state_dict()) == list(state)
    x = torch.randn(2, 1, 5, 5)
    assert torch.equal(twin.eval()(x), net.eval()(x))
    del state[f"0.{name}"]
    with pytest.raises(RuntimeError, match=rf'Missing key\(s\) in state_dict: "0.{name}"'):
        twin.load_state_dict(state)


def test_the_gate_within_a_noisy_gate_is_another_gate() -> None:
    inner = TensorGate(4, 2, (5, 5))
    net = nn.Sequential(
        SpatialMoE2d.from_experts(1, 4, 2, gate=ScoreGate(inner), rule="rc"),
        SpatialMoE2d.from_experts(2, 4, 2, gate=inner, rule="rc"),
    )
    assert [key for key in net.state_dict() if key.endswith("scores")] == ["0.gate.gate.scores", "1.gate.scores"]
    net.load_state_dict(net.state_dict())


def test_a_converted_network_is_saved_by_safetensors(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    net, other = one_embedding(), one_embedding()
    safetensors.save_file(net.state_dict(), tmp_path / "net.safetensors")
    other.load_state_dict(safetensors.load_file(tmp_path / "net.safetensors"))
    x = torch.randn(2, 1, 5, 5)
    assert torch.equal(other.eval()(x), net.eval()(x))
