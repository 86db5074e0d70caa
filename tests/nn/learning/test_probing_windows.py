"""What probing keeps from pass to pass and from window to window: evidence, costs, restarts, checkpoints."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from probing_layers import GRID, curvature_of, gate_of, make_batches, make_layer, memory_of, routing_of, step
from smoe.rules import Probing


def test_evaluation_and_passes_without_gradient_change_nothing() -> None:
    layer, (x, _) = make_layer(), make_batches(1)[0]
    state = copy.deepcopy(layer.state_dict())
    with torch.no_grad():
        first = layer(x)
    layer.eval()
    second = layer(x)
    second.sum().backward()
    torch.testing.assert_close(first, second)
    for name, value in layer.state_dict().items():
        assert torch.equal(value, state[name]), name


def test_a_checkpoint_within_a_window_resumes_exactly() -> None:
    layer, batches = make_layer(), make_batches(10)
    for x, target in batches[:4]:
        step(layer, x, target)
    resumed = make_layer(seed=5)
    step(resumed, *batches[9])  # it has begun a window of its own
    resumed.load_state_dict(copy.deepcopy(layer.state_dict()))
    copied = copy.deepcopy(layer)
    for x, target in batches[4:]:
        for one in (layer, resumed, copied):
            step(one, x, target)
        for name, value in layer.state_dict().items():
            assert torch.equal(value, resumed.state_dict()[name]), name
            assert torch.equal(value, copied.state_dict()[name]), name


def test_scores_of_another_rule_load_and_probing_begins() -> None:
    layer, other = make_layer(), make_layer(rule="rc", seed=3)
    result = layer.load_state_dict(other.state_dict())
    assert not result.missing_keys
    assert torch.equal(routing_of(layer), routing_of(other))
    step(layer, *make_batches(1)[0])


def test_recomputed_activations_change_nothing() -> None:
    plain, recomputed = make_layer(), make_layer()
    for x, target in make_batches(7):
        step(plain, x, target)
        F.mse_loss(checkpoint(recomputed, x, use_reentrant=False), target).backward()
    for name, value in plain.state_dict().items():
        assert torch.equal(value, recomputed.state_dict()[name]), name
    torch.testing.assert_close(plain.weight.grad, recomputed.weight.grad, rtol=0, atol=0)


def test_an_error_that_is_not_finite_is_counted_and_adds_nothing() -> None:
    layer, (x, target) = make_layer(), make_batches(1)[0]
    step(layer, x, target)
    before = memory_of(layer).evidence.clone()
    step(layer, x, torch.full_like(target, torch.nan))
    assert int(layer._signal.num_nonfinite) == 1
    assert torch.equal(memory_of(layer).evidence, before)
    # It is counted as a pass of the window, too: whether it was finite is not read on the host.
    assert memory_of(layer).counters["num_passes"] == 2


def test_scores_changed_by_somebody_else_begin_the_evidence_anew() -> None:
    """What was seen until then is about another choice."""
    layer, batches = make_layer(), make_batches(2)
    step(layer, *batches[0])
    assert memory_of(layer).evidence.count_nonzero() > 0
    with torch.no_grad():
        gate_of(layer).scores.copy_(gate_of(layer).scores.flip(0))
    twin = copy.deepcopy(layer)
    memory_of(twin).evidence.zero_()
    memory_of(twin).squares.zero_()
    for each in (layer, twin):
        step(each, *batches[1])
    assert torch.equal(memory_of(layer).evidence, memory_of(twin).evidence)
    assert torch.equal(memory_of(layer).squares, memory_of(twin).squares)


def test_costs_and_curvature_of_the_past_fade() -> None:
    layer, (batch,) = make_layer(rule=Probing(2)), make_batches(1)
    step(layer, *batch)
    assert memory_of(layer).costs.count_nonzero() == 0  # the last pass of a window looks at them
    step(layer, *batch)
    costs, rise = memory_of(layer).costs.clone(), float(curvature_of(layer)[0])
    assert costs.count_nonzero() > 0
    assert rise > 0.0
    for _ in range(2):
        # Without an error, nothing is added.
        layer(batch[0]).mul(0.0).sum().backward()
    torch.testing.assert_close(memory_of(layer).costs, 0.9 * costs)
    assert float(curvature_of(layer)[0]) == pytest.approx(0.98 * rise)


def test_a_dead_expert_starts_anew_as_a_copy_of_the_costliest() -> None:
    layer = make_layer(3, 1, seed=1)
    with torch.no_grad():
        gate_of(layer).scores[2] = -100.0  # serves nowhere
        gate_of(layer).scores[0, :3] = 50.0
        gate_of(layer).scores[1, 3:] = 50.0
        layer.weight[2] = 30.0  # and would help nowhere
    state, random = layer.weight.detach().clone(), torch.get_rng_state()
    batches = make_batches(3, 1)
    for x, target in batches:
        target = target.clone()
        target[:, :, 3:] *= 20.0  # expert 1 carries the error
        step(layer, x, target)
    assert torch.equal(torch.get_rng_state(), random)
    assert memory_of(layer).num_restarts == 1
    assert torch.equal(layer.weight[:2], state[:2])
    change = layer.weight[2] / state[1] - 1.0
    assert 0.0 < change.abs().max() < 0.1


def test_between_two_restarts_an_expert_has_the_time_to_find_its_pixels() -> None:
    layer, (x, target) = make_layer(3, 1, rule=Probing(1)), make_batches(1, 1)[0]
    gate, restarts = gate_of(layer), []
    for _ in range(34):
        with torch.no_grad():
            gate.scores[0], gate.scores[1:], layer.weight[1:] = 50.0, -50.0, 30.0  # two serve nowhere, and never will
        step(layer, x, target)
        restarts.append(int(memory_of(layer).num_restarts))
    assert restarts == [1] * 16 + [2] * 16 + [3] * 2


def test_an_empty_batch_is_a_pass_that_says_nothing() -> None:
    """It is counted, because in other processes the batch may not be empty."""
    layer = make_layer()
    step(layer, *make_batches(1)[0])
    evidence = memory_of(layer).evidence.clone()
    layer(torch.zeros(0, 1, *GRID)).sum().backward()
    assert torch.equal(memory_of(layer).evidence, evidence)
    assert memory_of(layer).counters["num_passes"] == 2
