"""Layers whose gate learns by probing: decisions against a loop definition, and the guarantees of every rule."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smoe
from probing_layers import (
    GRID,
    challenge_of,
    curvature_of,
    gate_of,
    make_batches,
    make_layer,
    memory_of,
    routing_of,
    step,
)
from smoe.rules import Probing
from smoe_paper.baselines.gates import ConvGate


@pytest.mark.parametrize(("num_experts", "num_selected", "confidence"), [(3, 1, 0.0), (4, 2, 0.0), (5, 3, 0.3)])
def test_windows_decide_as_the_definition(num_experts: int, num_selected: int, confidence: float) -> None:
    """A loop over pixels computes what each pass says; of the pass that disturbs the output, the layer's is taken."""
    layer = make_layer(num_experts, num_selected, rule=Probing(3, confidence))
    memory = memory_of(layer)
    batches, num_changes = make_batches(12, num_selected), 0
    for window in range(4):
        before = routing_of(layer)
        challenge = challenge_of(layer)
        evidence = squares = torch.zeros(())
        for number in range(3):
            x, target = batches[3 * window + number]
            step(layer, x, target)
            if number == 0:
                evidence, squares = (part.view(GRID).clone() for part in (memory.evidence, memory.squares))
                continue
            rise, size = curvature_of(layer).tolist()
            slopes, sizes = slopes_and_sizes(layer, x, target, before, challenge)
            evidence = evidence + slopes.sum(0) + 0.5 * max(rise / size, 0.0) * sizes.sum(0)
            squares = squares + slopes.square().sum(0)
        expected = before.clone()
        for row, column in torch.cartesian_prod(*map(torch.arange, GRID)).tolist():
            if evidence[row, column] < -confidence * squares[row, column].sqrt():
                expected[challenge.slots[row, column], row, column] = challenge.experts[0, row, column]
        assert torch.equal(routing_of(layer), expected), window
        num_changes += int((expected != before).sum())
        assert memory.counters == {"num_windows": window + 1, "num_passes": 0}
    assert num_changes > 0


def slopes_and_sizes(layer, x, target, indices, challenge) -> tuple[torch.Tensor, torch.Tensor]:
    slopes, sizes = torch.zeros(len(x), *GRID), torch.zeros(len(x), *GRID)
    with torch.no_grad():
        experts = F.conv2d(x, layer.weight, padding=1)
        output = experts.gather(1, indices.expand(len(x), *indices.shape))
        error = 2.0 * (output - target) / target.numel()
        for row, column in torch.cartesian_prod(*map(torch.arange, GRID)).tolist():
            slot, expert = int(challenge.slots[row, column]), int(challenge.experts[0, row, column])
            d = experts[:, expert, row, column] - output[:, slot, row, column]
            slopes[:, row, column] = error[:, slot, row, column] * d
            sizes[:, row, column] = d.square()
    return slopes, sizes


def test_gradients_are_those_of_the_function_except_where_the_output_was_disturbed() -> None:
    layer, (x, target) = make_layer(), make_batches(1)[0]
    for _ in range(2):
        layer.zero_grad()
        step(layer, x, target)
    experts = F.conv2d(x, layer.weight, padding=1)
    indices = routing_of(layer)
    F.mse_loss(experts.gather(1, indices.expand(4, *indices.shape)), target).backward(inputs=[layer.weight])
    gradient = layer.weight.grad
    assert gradient is not None
    layer.zero_grad()
    plain = make_layer(rule="frozen")
    step(plain, x, target)
    assert plain.weight.grad is not None
    torch.testing.assert_close(gradient, 2.0 * plain.weight.grad)


@pytest.mark.parametrize("factor", [2.0**-10, 2.0**10])
def test_the_unit_of_the_data_is_without_effect(factor: float) -> None:
    layers = [make_layer(), make_layer()]
    for x, target in make_batches(9):
        step(layers[0], x, target)
        step(layers[1], x, target, factor)
    assert torch.equal(routing_of(layers[0]), routing_of(layers[1]))
    assert not torch.equal(routing_of(layers[0]), routing_of(make_layer()))


def test_the_gate_is_left_to_no_optimiser() -> None:
    layer, (x, target) = make_layer(), make_batches(1)[0]
    optimizer = torch.optim.AdamW(layer.parameters(), weight_decay=0.5)
    before = gate_of(layer).scores.clone()
    step(layer, x, target)
    optimizer.step()
    assert torch.equal(gate_of(layer).scores, before)


def test_a_shared_gate_decides_by_what_all_its_layers_see() -> None:
    first = make_layer()
    second = smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=first.gate, rule="probe(window=3)")
    net, memory = nn.Sequential(first, nn.Tanh(), second), memory_of(first)
    for number, (x, target) in enumerate(make_batches(3), start=1):
        step(net, x, target)
        assert memory.counters["num_passes"] == number % 3
    assert memory.counters["num_windows"] == 1
    assert torch.equal(routing_of(first), routing_of(second))
    assert not torch.equal(routing_of(first), routing_of(make_layer()))


def test_a_loss_without_a_bottom_is_taken_as_straight() -> None:
    """With a negative curvature, whoever differs most would win."""
    layer, batches = make_layer(), make_batches(2)
    memory, indices, challenge = memory_of(layer), routing_of(layer), challenge_of(layer)
    (x, target), first = batches[1], torch.zeros(())
    for number, (input, goal) in enumerate(batches):
        (-F.mse_loss(layer(input), goal)).backward()
        first = memory.evidence.clone() if number == 0 else first
    assert float(curvature_of(layer)[0]) < 0.0
    slopes, _ = slopes_and_sizes(layer, x, target, indices, challenge)
    torch.testing.assert_close(memory.evidence, first - slopes.sum(0).flatten())


def test_it_finds_who_belongs_where() -> None:
    """Two filters, left and right: found from a random start, with the routing map in the end."""
    torch.manual_seed(0)
    truth = torch.randn(2, 1, 3, 3)
    layer = make_layer(2, 1, rule=Probing(4))
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    for _ in range(400):
        x = torch.randn(16, 1, *GRID)
        both = F.conv2d(x, truth, padding=1)
        target = torch.cat([both[:, :1, :, :3], both[:, 1:, :, 3:]], dim=3)
        optimizer.zero_grad()
        step(layer, x, target)
        optimizer.step()
    choice = routing_of(layer)[0]
    assert (choice[:, :3] == choice[0, 0]).all()
    assert (choice[:, 3:] == 1 - choice[0, 0]).all()
    torch.testing.assert_close(layer.weight[choice[0, 0]], truth[0], atol=1e-3, rtol=0)


def test_any_module_can_be_the_experts() -> None:
    torch.manual_seed(0)
    layer = smoe.SpatialMoE(nn.Conv2d(1, 4, 3, padding=1), 4, 2, spatial_shape=GRID, order="score", rule=Probing(3))
    before = layer.routing().indices
    for x, target in make_batches(6):
        step(layer, x, target)
    assert not torch.equal(layer.routing().indices, before)


def test_with_all_experts_selected_there_is_nothing_to_try() -> None:
    layer, (x, target) = make_layer(2, 2), make_batches(1)[0]
    step(layer, x, target)
    assert memory_of(layer).counters["num_passes"] == 0


# Raised inside the compiler where it goes on after what it leaves alone.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_it_learns_the_same() -> None:
    eager, compiled = make_layer(), make_layer()
    run = torch.compile(compiled, backend="aot_eager")
    for x, target in make_batches(4):
        step(eager, x, target)
        F.mse_loss(run(x), target).backward()
    assert torch.equal(routing_of(eager), routing_of(compiled))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weighted": True}, "weighted=False"),
        ({"order": "index"}, "order='score', got 'index'"),
        ({"gate": smoe.FixedGate.random(4, 2, GRID)}, "needs a TensorGate, got FixedGate"),
        ({"gate": ConvGate(1, 4, 2)}, "it needs a TensorGate, got ConvGate"),
    ],
)
def test_what_probing_cannot_do_is_refused(options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_layer(**options)


def test_layers_that_share_a_gate_learn_by_one_rule() -> None:
    layer = make_layer()
    with pytest.raises(ValueError, match="decide together"):
        make_layer(gate=layer.gate, rule=Probing(4))
    other = make_layer(gate=layer.gate, rule="rc")
    with pytest.raises(ValueError, match="give both the same"):
        other(torch.zeros(1, 1, *GRID))


def test_a_tracked_loss_scale_is_divided_out() -> None:
    layers = [make_layer(), make_layer()]
    for x, target in make_batches(4):
        step(layers[0], x, target)
        loss = smoe.nn.track_loss_scale(F.mse_loss(layers[1](x), target), layers[1])
        (1024.0 * loss).backward()
    assert torch.equal(memory_of(layers[0]).evidence, memory_of(layers[1]).evidence)
    assert torch.equal(curvature_of(layers[0]), curvature_of(layers[1]))
    assert torch.equal(memory_of(layers[0]).costs, memory_of(layers[1]).costs)


def test_half_precision_without_a_tracked_loss_is_warned_of_once() -> None:
    layer, (x, target) = make_layer(), make_batches(1)[0]

    def half_step() -> None:
        with torch.autocast("cpu", torch.float16):
            output = layer(x)
        F.mse_loss(output.float(), target).backward()

    half_step()  # the loss does not exist before the first one
    with pytest.warns(UserWarning, match="without knowing the loss scale"):
        half_step()
    half_step()
