"""Straight-through in score order: the gradient of an exchange, against the loss of a mixture of both outputs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import smoe
from smoe.ops._probing import draw_challenge
from smoe.rules import StraightThrough
from smoe_paper.baselines.gates import ConvGate

GRID = (5, 6)


def make_layer(num_experts: int = 4, num_selected: int = 2, **options) -> smoe.SpatialMoE2d:
    torch.manual_seed(0)
    gate = options.pop("gate", None) or smoe.TensorGate(num_experts, num_selected, GRID)
    rule = StraightThrough(share=1.0, noise=0.0)
    return smoe.SpatialMoE2d.from_experts(1, num_experts, num_selected, gate=gate, rule=rule, bias=False, **options)


@pytest.mark.parametrize(("num_experts", "num_selected"), [(3, 1), (5, 3)])
def test_the_gradient_is_that_of_making_a_little_of_the_exchange(num_experts: int, num_selected: int) -> None:
    layer = make_layer(num_experts, num_selected).double()
    x, target = torch.randn(3, 1, *GRID).double(), torch.randn(3, num_selected, *GRID).double()
    indices = layer.routing().indices
    challenge = draw_challenge(layer.gate().indices, num_experts, 0)
    challengers, challenged = challenge.experts.long().reshape(1, *GRID), challenge.slots.reshape(GRID)
    F.mse_loss(layer(x), target).backward()

    experts = F.conv2d(x, layer.weight.detach(), padding=1)
    share = torch.zeros(GRID, dtype=torch.float64, requires_grad=True)
    output = experts.gather(1, indices.expand(3, *indices.shape)).clone()
    other = experts.gather(1, challengers.expand(3, 1, *GRID))
    slots = challenged.expand(3, 1, *GRID)
    incumbent = output.gather(1, slots)
    mixed = output.scatter(1, slots, incumbent + share * (other - incumbent))
    F.mse_loss(mixed, target).backward()
    assert share.grad is not None

    expected = torch.zeros_like(layer.gate.get_parameter("scores"))
    expected.scatter_(0, challengers, share.grad[None])
    expected.scatter_(0, indices.gather(0, challenged[None]), -share.grad[None])
    torch.testing.assert_close(layer.gate.get_parameter("scores").grad, expected, rtol=1e-5, atol=1e-8)


def test_each_pass_tries_another_and_evaluation_none() -> None:
    layer, x = make_layer(), torch.randn(2, 1, *GRID)
    touched = []
    for _ in range(3):
        layer.zero_grad()
        layer(x).square().mean().backward()
        gradient = layer.gate.get_parameter("scores").grad
        assert gradient is not None
        touched.append(gradient != 0.0)
    assert layer.learner.counters["num_trials"] == 3
    assert not torch.equal(touched[0], touched[1])
    layer.eval()
    layer(x).sum().backward()
    assert layer.learner.counters["num_trials"] == 3


def test_a_choice_that_is_wrong_is_left() -> None:
    torch.manual_seed(0)
    layer = make_layer(2, 1)
    layer.weight.requires_grad_(False)
    truth = torch.randint(0, 2, (1, *GRID))
    optimizer = torch.optim.Adam([layer.gate.get_parameter("scores")], lr=0.05)
    for _ in range(150):
        x = torch.randn(8, 1, *GRID)
        target = F.conv2d(x, layer.weight, padding=1).gather(1, truth.expand(8, 1, *GRID))
        optimizer.zero_grad()
        F.mse_loss(layer(x), target).backward()
        optimizer.step()
    assert torch.equal(layer.routing().indices, truth)


def test_an_error_that_is_not_finite_moves_nothing_and_is_counted() -> None:
    layer = make_layer()
    (layer(torch.randn(2, 1, *GRID)) * torch.nan).sum().backward()
    assert int(layer.num_nonfinite_errors) == 1
    gradient = layer.gate.get_parameter("scores").grad
    assert gradient is not None
    assert (gradient == 0.0).all()


def test_a_gate_that_looks_at_its_input_is_refused() -> None:
    with pytest.raises(ValueError, match="does not look at its input, got ConvGate"):
        make_layer(gate=ConvGate(1, 4, 2))
