"""The straight-through gradient over families, against loops over experts, samples and pixels."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smoe
import smoe.nn._filter_bank as filter_bank
import smoe.nn._gate as gate_module
from smoe.nn._gates import FactorisedGate
from smoe.ops._families import family_sizes
from smoe.ops._operators import native_library
from smoe.rules import StraightThrough
from smoe_paper.baselines.layers import ConvGate

GRID = (5, 6)


def make_layer(num_experts: int, num_selected: int, *, seed: int = 0, **options) -> smoe.SpatialMoE2d:
    """A layer whose experts differ, in float64."""
    torch.manual_seed(seed)
    rule = options.pop("rule", StraightThrough(share=1.0, warm_up=0))
    gate = options.pop("gate", None) or smoe.TensorGate(num_experts, num_selected, GRID, order="families")
    layer = smoe.SpatialMoE2d.from_experts(2, num_experts, num_selected, gate=gate, rule=rule, **options).double()
    nn.init.normal_(layer.weight)
    if layer.bias is not None:
        nn.init.normal_(layer.bias)
    return layer


def expected_gradient(
    layer: smoe.SpatialMoE2d, input: torch.Tensor, error: torch.Tensor, samples: list[int]
) -> torch.Tensor:
    """The gradient of the scores `(X, P)` for an error `(B, E * F, P)`."""
    F_ = layer._expert_channels
    bias = layer.bias if layer._bias_owner == "expert" else None
    outputs = F.conv2d(input, layer.weight, bias, padding=1).flatten(2).detach()
    scores = layer.gate(None).scores[0].detach()
    gradient, start = torch.zeros_like(scores), 0
    for slot, size in enumerate(family_sizes(layer.gate.num_experts, layer.gate.num_selected)):
        products = torch.zeros(size, scores.shape[1], dtype=scores.dtype)
        for place in range(size):
            for sample in samples:
                for channel in range(F_):
                    output = outputs[sample, (start + place) * F_ + channel]
                    products[place] += error[sample, slot * F_ + channel] * output
        for pixel in range(scores.shape[1]):
            own = scores[start : start + size, pixel]
            weights = own.exp().tolist()
            probability = [weight / sum(weights) for weight in weights]
            mean = sum(p * float(d) for p, d in zip(probability, products[:, pixel], strict=True))
            for place in range(size):
                gradient[start + place, pixel] = probability[place] * (float(products[place, pixel]) - mean)
        start += size
    return gradient


@pytest.mark.parametrize(
    ("num_experts", "num_selected", "options", "samples"),
    [
        (3, 1, {"expert_channels": 2, "bias": "expert"}, [0, 1, 2, 3, 4]),
        (4, 2, {"bias": False}, [0, 1, 2, 3, 4]),
        (7, 3, {"expert_channels": 2, "bias": "slot"}, [0, 1, 2, 3, 4]),
        (8, 2, {"bias": "expert", "rule": StraightThrough(share=0.5)}, [0, 2]),  # at equal distances
    ],
)
def test_the_gradient_of_the_scores(
    num_experts: int, num_selected: int, options: dict[str, Any], samples: list[int]
) -> None:
    layer = make_layer(num_experts, num_selected, **options)
    input = torch.randn(5, 2, *GRID).double()
    error = torch.randn(5, layer.out_channels, 30).double()
    layer(input).flatten(2).backward(error)
    found = layer.gate.get_buffer("scores").grad
    assert found is not None
    torch.testing.assert_close(found.flatten(1), expected_gradient(layer, input, error, samples))


def test_the_experts_learn_where_they_were_drawn() -> None:
    layer = make_layer(6, 3)
    other = copy.deepcopy(layer)
    input, error = torch.randn(3, 2, *GRID).double(), torch.randn(3, 3, *GRID).double()
    output = layer(input)
    # The drawn experts are found by their outputs.
    everywhere = F.conv2d(input, layer.weight, layer.bias, padding=1).unflatten(1, (3, 2))
    chosen = (everywhere - output.unsqueeze(2)).abs().amin(dim=0).argmin(dim=1) + 2 * torch.arange(3)[:, None, None]
    assert not torch.equal(chosen, layer.routing().indices)
    output.backward(error)
    other.rule = "frozen"
    with torch.no_grad():
        other.gate.get_buffer("scores").zero_().scatter_(0, chosen, 1.0)
    other(input).backward(error)
    torch.testing.assert_close(layer.weight.grad, other.weight.grad)
    assert layer.bias is not None
    assert other.bias is not None
    torch.testing.assert_close(layer.bias.grad, other.bias.grad)
    layer.eval()
    with torch.no_grad():
        layer.gate.get_buffer("scores").copy_(other.gate.get_buffer("scores"))
    assert torch.equal(layer(input), other.eval()(input))


def has_learned(layer: smoe.SpatialMoE2d) -> bool:
    """Whether the keys received a gradient."""
    gradient = layer.gate.get_buffer("keys").grad
    return gradient is not None and bool((gradient != 0.0).any())


def test_a_layer_used_twice_in_a_pass_goes_on_learning() -> None:
    layer = smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=FactorisedGate(4, 2, GRID), rule=StraightThrough(share=0.25))
    nn.init.normal_(layer.weight)
    num_learned = 0
    for number in range(13):
        layer.zero_grad()
        output = layer(torch.randn(1, 2, *GRID))
        if number > 0:  # an odd number of passes before
            output = layer(output)
        output.square().sum().backward()
        num_learned += has_learned(layer)
        layer.gate.get_buffer("keys").grad = None
    assert num_learned >= 5


def test_the_noise_grows_during_the_warm_up_and_falls_in_a_long_training() -> None:
    layer = smoe.SpatialMoE2d.from_experts(
        2, 4, 2, gate=FactorisedGate(4, 2, (20, 20)), rule=StraightThrough(noise=2.0, warm_up=4)
    )
    keys = layer.gate.get_buffer("keys")
    with torch.no_grad():
        keys.copy_(torch.eye(8)[:4])
        layer.gate.get_buffer("embedding.values").zero_()[::2] = 0.1  # leads by 1 score
    shares = []
    for step in (0, 1, 2, 3, 4, 5, 15_000):
        layer._learner.counters["num_steps"] = step
        layer(torch.randn(4, 2, 20, 20)).sum().backward()
        routing = layer._scored_routing()
        assert routing is not None
        shares.append(float((routing.indices % 2 == 0).float().mean()))
    # The lead of 1 against the difference of two noises, sqrt(2) times 0, 0.5, 1, 1.5, 2, 2, 0.5: Phi of their ratio.
    assert shares == pytest.approx([1.0, 0.921, 0.760, 0.681, 0.638, 0.638, 0.921], abs=0.06)


def test_a_schedule_of_the_temperature_goes_on_counting() -> None:
    layer = smoe.SpatialMoE2d.from_experts(2, 4, 2, spatial_shape=GRID)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for temperature in (1.0, 0.5, 0.25):
        layer.rule = dataclasses.replace(layer.rule, temperature=temperature)  # type: ignore[arg-type]
        layer(torch.randn(4, 2, *GRID)).sum().backward()
        optimizer.step()
    assert layer._learner.counters["num_steps"] == 3
    # Another rule starts anew.
    layer.freeze()
    layer.rule = StraightThrough()
    assert layer._learner.counters["num_steps"] == 0


def test_gates_that_look_at_the_input_and_weighted_layers_are_refused() -> None:
    gate = ConvGate(2, 4, 2, order="families")
    with pytest.raises(ValueError, match="neither looks at its input nor adds noise, got a ConvGate"):
        smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=gate, rule="straight_through")
    with pytest.raises(ValueError, match="got weighted=True; the rules 'rc' and 'end_to_end' serve"):
        smoe.SpatialMoE2d.from_experts(2, 4, 2, spatial_shape=GRID, weighted=True)


# Names of gates, made for families.
GATES = {
    "factorised": lambda: FactorisedGate(12, 4, (5, 7), init="kaiming"),
    "tensor": lambda: smoe.TensorGate(12, 4, (5, 7), order="families"),
}


@pytest.mark.parametrize("name", GATES)
def test_families_of_large_grids_come_after_one_another(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what is selected nor what is learned depends on the number of families at a time."""
    torch.manual_seed(0)
    rule = StraightThrough(share=1.0, warm_up=0)
    whole = smoe.SpatialMoE2d.from_experts(3, 12, 4, gate=GATES[name](), rule=rule)
    nn.init.normal_(whole.weight)
    parts = copy.deepcopy(whole)
    x, error = torch.randn(2, 3, 5, 7), torch.randn(2, 4, 5, 7)
    expected = whole(x)
    expected.backward(error)
    monkeypatch.setattr(gate_module, "_MAX_SCORES", 2 * 3 * 35)
    assert len(parts.gate._bands(35)) == 2
    if name != "tensor":
        monkeypatch.setattr(type(parts.gate), "raw_scores", lambda *_: pytest.fail("all scores were computed"))
    found = parts(x)
    found.backward(error)
    torch.testing.assert_close(found, expected)
    for one, other in zip(parts.gate._learned_numbers(), whole.gate._learned_numbers(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)
    assert torch.equal(parts.gate._decide(None).indices, whole.eval().gate._decide(None).indices)


def _geometries() -> dict[str, tuple[Any, ...]]:
    """Layers and their inputs."""
    torch.manual_seed(0)
    edges = torch.stack([torch.arange(30), (torch.arange(30) + 1) % 30])
    return {
        "line": (smoe.SpatialMoE1d(3, 4, 3, spatial_shape=(30,)), torch.randn(8, 3, 30)),
        "plane": (smoe.SpatialMoE2d(3, 4, 3, spatial_shape=GRID), torch.randn(8, 3, *GRID)),
        "stride": (smoe.SpatialMoE2d(3, 4, 3, stride=2, spatial_shape=(3, 3)), torch.randn(8, 3, *GRID)),
        "volume": (smoe.SpatialMoE3d(3, 4, 3, spatial_shape=(2, 3, 5)), torch.randn(8, 3, 2, 3, 5)),
        "sphere": (smoe.HEALPixMoE(3, 4, 3, nside=2), torch.randn(8, 3, 48)),
        "graph": (smoe.GraphMoE(3, 4, num_nodes=30), torch.randn(8, 30, 3), edges),
    }


@pytest.mark.parametrize("name", ["line", "plane", "stride", "volume", "sphere", "graph"])
def test_the_kernel_learns_as_its_definition_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, *inputs = _geometries()[name]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter))
    other = copy.deepcopy(layer)
    error = torch.randn_like(layer(*inputs))
    learn, results = filter_bank.learn_factorised, []
    monkeypatch.setattr(filter_bank, "learn_factorised", lambda *a, **k: results.append(learn(*a, **k)) or results[-1])
    layer(*inputs).backward(error)
    assert (results[0] is None) == (native_library() is None)
    monkeypatch.setattr(filter_bank, "learn_factorised", lambda *a, **k: None)
    other(*inputs).backward(error)
    for mine, true in zip(layer.gate._learned_numbers(), other.gate._learned_numbers(), strict=True):
        assert mine.grad is not None
        assert mine.grad.any()
        torch.testing.assert_close(mine.grad, true.grad, rtol=1e-4, atol=1e-5 * float(mine.grad.abs().max()))
