"""Learning in bands of families, where the scores of a grid are large, beside learning from all scores at once."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import smoe
from smoe.nn import _gate as banded
from smoe.nn._gate import BandedGate
from smoe.ops._families import sample_families
from smoe.rules import StraightThrough

GRID = (5, 7)
GATES: dict[str, Callable[[int, int], BandedGate]] = {
    "factorised": lambda X, E: smoe.FactorisedGate(X, E, GRID, rank=3),
    "coarse": lambda X, E: smoe.CoarseGate(X, E, GRID, factor=2, wraps=(False, True)),
    "tensor": lambda X, E: smoe.TensorGate(X, E, GRID, order="families"),
}


def make_layer(name: str, num_experts: int = 11, num_selected: int = 4, **options) -> smoe.SpatialMoE2d:
    """A layer whose experts and scores differ."""
    torch.manual_seed(0)
    rule = options.pop("rule", StraightThrough(share=1.0, warm_up=0, temperature=0.7))
    gate = GATES[name](num_experts, num_selected)
    layer = smoe.SpatialMoE2d.from_experts(3, num_experts, num_selected, gate=gate, rule=rule, **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


def run(layer: smoe.SpatialMoE2d, scale: float = 1.0) -> dict[str, torch.Tensor]:
    """Output and all gradients of a training pass."""
    torch.manual_seed(1)
    input = torch.randn(2, 3, *GRID, requires_grad=True)
    output = layer(input)
    output.backward(scale * torch.randn_like(output))
    found = {name: parameter.grad for name, parameter in layer.named_parameters()}
    assert input.grad is not None
    return {"output": output.detach(), "input": input.grad, **{k: v for k, v in found.items() if v is not None}}


def in_bands(monkeypatch: pytest.MonkeyPatch, num_scores: int = 3 * 35 * 2) -> None:
    """Lets gates work in bands of few families."""
    monkeypatch.setattr(banded, "_MAX_SCORES", num_scores)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", [{}, {"expert_channels": 2, "bias": False}, {"bias": "slot"}])
@pytest.mark.parametrize("name", GATES)
def test_bands_change_nothing(name: str, options: dict, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make_layer(name, **options).to(dtype)
    parts = copy.deepcopy(whole)
    torch.set_default_dtype(dtype)
    try:
        expected = run(whole)
        in_bands(monkeypatch)
        assert isinstance(parts.gate, BandedGate)
        assert len(parts.gate.bands()) == 2
        monkeypatch.setattr(type(parts.gate), "raw_scores", lambda *_: pytest.fail("all scores were computed"))
        found = run(parts)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.keys() == expected.keys()
    tolerance = {torch.float32: 2e-5, torch.float64: 1e-6}[dtype]  # the native spread is rounded to float32
    for part, value in expected.items():
        torch.testing.assert_close(found[part], value, rtol=tolerance, atol=tolerance * float(value.abs().max()))


@pytest.mark.parametrize("scale", [1e-15, 1e15])
def test_the_gradient_has_the_unit_of_the_error(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    in_bands(monkeypatch)
    layer, other = make_layer("factorised"), make_layer("factorised")
    found, expected = run(layer, scale), run(other)
    for name in ("gate.keys", "gate.embedding.values"):
        torch.testing.assert_close(
            found[name] / scale, expected[name], rtol=1e-4, atol=1e-6 * float(expected[name].abs().max())
        )


@pytest.mark.parametrize("name", GATES)
def test_an_error_that_is_not_finite_teaches_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_bands(monkeypatch)
    layer = make_layer(name)
    output = layer(torch.randn(2, 3, *GRID))
    error = torch.randn_like(output)
    error[0, 0, 2, 3] = torch.inf
    output.backward(error)
    assert int(layer.num_nonfinite_errors) == 1
    for parameter in layer.gate.parameters():
        assert parameter.grad is not None
        assert (parameter.grad == 0.0).all()


def test_the_selection_with_noise_is_that_of_all_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("coarse", "tensor"):
        gate = make_layer(name).gate
        assert isinstance(gate, BandedGate)
        seed = torch.tensor(12345)
        expected = sample_families(gate.raw_scores().flatten(1)[None], 4, seed, 1.5)
        in_bands(monkeypatch)
        assert torch.equal(gate.draw(seed, 1.5).indices, expected)
        assert torch.equal(gate.decide(None, None).indices, gate(None).indices)


def test_passes_between_leave_the_gate_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    in_bands(monkeypatch)
    layer = make_layer("coarse", rule=StraightThrough(share=0.25))
    grads = []
    for _ in range(5):
        layer.zero_grad()
        layer(torch.randn(1, 3, *GRID)).square().sum().backward()
        grads.append(layer.gate.get_parameter("values").grad is not None)
    assert grads == [True, False, False, False, True]


@pytest.mark.parametrize("name", GATES)
def test_a_frozen_part_of_the_gate_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_bands(monkeypatch)
    layer = make_layer(name)
    first, *others = layer.gate.parameters()
    first.requires_grad_(False)
    output = layer(torch.randn(1, 3, *GRID))
    output.sum().backward()
    assert first.grad is None
    assert all(parameter.grad is not None for parameter in others)


def test_a_graph_learns_from_the_nodes_of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def gradient() -> torch.Tensor:
        torch.manual_seed(0)
        layer = smoe.GraphMoE.from_experts(2, 6, 2, num_nodes=8, rule=StraightThrough(share=1.0, noise=0.0))
        nn.init.normal_(layer.weight)
        nodes, edges = torch.tensor([1, 4, 6]), torch.tensor([[0, 1, 2], [1, 2, 0]])
        layer(torch.randn(3, 2), edges, node_id=nodes).square().sum().backward()
        values = layer.gate.get_parameter("embedding.values").grad
        assert values is not None
        return values

    expected = gradient()
    monkeypatch.setattr(banded, "_MAX_SCORES", 20)
    torch.testing.assert_close(gradient(), expected)
    assert (expected != 0.0).any(dim=0).nonzero().flatten().tolist() == [1, 4, 6]
