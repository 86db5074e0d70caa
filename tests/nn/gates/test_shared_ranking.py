"""Layers that share a gate rank its experts once in a forward pass, and always by its present scores."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

import smoe.nn._gate as gate_module
from smoe import SpatialGate, SpatialMoE2d, TensorGate
from smoe.nn import NoisyGate
from smoe.options import Order
from smoe.rules import RoutingClassification

RC = RoutingClassification.released()

NUM_LAYERS = 3

# The tracer of torch 2.13 instantiates autograd functions.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


def make_net(gate: SpatialGate | None = None, order: Order = "score") -> nn.Sequential:
    gate = gate or TensorGate(6, 2, (5, 4))
    return nn.Sequential(
        *(SpatialMoE2d.from_experts(2, 6, 2, gate=gate, order=order, rule=RC) for _ in range(NUM_LAYERS))
    )


def scores_of(net: nn.Sequential, place: int = 0) -> nn.Parameter:
    scores = gate_of(net, place).scores
    assert isinstance(scores, nn.Parameter)
    return scores


def gate_of(net: nn.Sequential, place: int = 0) -> SpatialGate:
    layer = net[place]
    assert isinstance(layer, SpatialMoE2d)
    return layer.gate


@pytest.fixture
def rankings(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The scores that were ranked, in order."""
    ranked: list[torch.Tensor] = []
    real = gate_module.top_experts

    def record(scores: torch.Tensor, num_selected: int, order: Order) -> torch.Tensor:
        ranked.append(scores.detach().clone())
        return real(scores, num_selected, order)

    monkeypatch.setattr(gate_module, "top_experts", record)
    return ranked


def expected(net: nn.Sequential, input: torch.Tensor) -> torch.Tensor:
    """What layers with gates of their own give."""
    apart = [copy.deepcopy(layer) for layer in net]
    return nn.Sequential(*apart).train(net.training)(input)


def test_one_ranking_for_each_forward_pass(rankings: list[torch.Tensor]) -> None:
    net, input = make_net(), torch.randn(2, 2, 5, 4)
    for count in (1, 2):
        output = net(input)
        assert len(rankings) == count
    net.eval()
    with torch.no_grad():
        net(input)
    assert len(rankings) == 3
    torch.testing.assert_close(output, expected(net.train(), input))


def _adam(net: nn.Sequential) -> None:
    _step(net, torch.optim.Adam(net.parameters(), lr=1.0))


def _fused_adam(net: nn.Sequential) -> None:
    _step(net, torch.optim.Adam(net.parameters(), lr=1.0, fused=True))


def _foreach_sgd(net: nn.Sequential) -> None:
    _step(net, torch.optim.SGD(net.parameters(), lr=1e3, momentum=0.9, foreach=True))


def _step(net: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    net[0](torch.randn(2, 2, 5, 4)).square().mean().backward()
    optimizer.step()


def _load(net: nn.Sequential) -> None:
    net.load_state_dict(make_net().state_dict())


def _load_by_assignment(net: nn.Sequential) -> None:
    net.load_state_dict(make_net().state_dict(), assign=True)


def _write_in_place(net: nn.Sequential) -> None:
    with torch.no_grad():
        scores_of(net).neg_()


def _write_through_data(net: nn.Sequential) -> None:
    scores_of(net).data.neg_()


def _set_data(net: nn.Sequential) -> None:
    scores = scores_of(net)
    scores.data = -scores.data


def _set_parameter(net: nn.Sequential) -> None:
    gate_of(net).scores = nn.Parameter(-scores_of(net).detach())


def _double(net: nn.Sequential) -> None:
    net.double()
    with torch.no_grad():
        scores_of(net).neg_()
    net.float()


CHANGES = [
    _adam, _fused_adam, _foreach_sgd, _load, _load_by_assignment, _write_in_place, _write_through_data, _set_data,
    _set_parameter, _double,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_whatever_changes_the_scores_makes_a_new_ranking(
    change: Callable[[nn.Sequential], None], rankings: list[torch.Tensor]
) -> None:
    net, input = make_net(), torch.randn(2, 2, 5, 4)
    net(input)
    before = rankings[-1]
    change(net)
    # Only the second layer has to see it: the first has used the ranking already and would make a new one anyway.
    net[0](input)
    output = net[1](input)
    assert not torch.equal(rankings[-1], before)
    torch.testing.assert_close(rankings[-1], scores_of(net).detach().flatten(1)[None])
    torch.testing.assert_close(output, copy.deepcopy(net[1])(input))


@pytest.mark.parametrize(
    "change", [_fused_adam, _foreach_sgd, _load, _write_in_place, _set_data, _set_parameter, _double]
)
def test_a_change_within_a_forward_pass_is_seen_too(change: Callable[[nn.Sequential], None]) -> None:
    net, input = make_net(), torch.randn(2, 2, 5, 4)
    net[1](input)
    change(net)
    torch.testing.assert_close(net[2](input), copy.deepcopy(net[2])(input))


def test_in_evaluation_and_inference_mode(rankings: list[torch.Tensor]) -> None:
    net, input = make_net().eval(), torch.randn(2, 2, 5, 4)
    reference = expected(net, input)
    rankings.clear()
    with torch.no_grad():
        torch.testing.assert_close(net(input), reference)
    with torch.inference_mode():
        torch.testing.assert_close(net(input), reference)
        # A net made here has parameters that count no versions.
        made = make_net().eval()
        torch.testing.assert_close(made(input), expected(made, input))
    assert len(rankings) == 2 + NUM_LAYERS + NUM_LAYERS


def test_gradients_are_those_of_layers_with_gates_of_their_own() -> None:
    net, input = make_net(), torch.randn(3, 2, 5, 4)
    apart = nn.Sequential(*(copy.deepcopy(layer) for layer in net))
    for each in (net, apart):
        each(input).square().mean().backward()
    gradients = [scores_of(apart, place).grad for place in range(NUM_LAYERS)]
    expected_sum = torch.stack([gradient for gradient in gradients if gradient is not None]).sum(dim=0)
    torch.testing.assert_close(scores_of(net).grad, expected_sum)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copy_has_its_own(copied: Callable[[nn.Sequential], nn.Sequential]) -> None:
    net, input = make_net(), torch.randn(2, 2, 5, 4)
    net(input)
    other = copied(net)
    _write_in_place(other)
    torch.testing.assert_close(other(input), expected(other, input))
    torch.testing.assert_close(net(input), expected(net, input))


def test_compiled_layers_rank_inside_their_graph(rankings: list[torch.Tensor]) -> None:
    net, input = make_net(), torch.randn(2, 2, 5, 4)
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(input), expected(net, input))
        _write_in_place(net)
    _write_through_data(net)
    torch.testing.assert_close(compiled(input), expected(net, input))


def test_functional_calls_rank_what_they_are_given() -> None:
    net, input = make_net(), torch.randn(2, 2, 5, 4)
    net(input)
    other = make_net()
    shared = {f"{place}.gate.scores": scores_of(other) for place in range(NUM_LAYERS)}
    parameters: dict[str, torch.Tensor] = {**dict(other.named_parameters()), **shared}
    torch.testing.assert_close(torch.func.functional_call(net, parameters, (input,)), other(input))


def test_a_gate_has_one_order() -> None:
    with pytest.raises(ValueError, match="the gate has order='score', but order is 'index'; give it to the gate"):
        SpatialMoE2d.from_experts(2, 6, 3, gate=TensorGate(6, 3, (5, 4)), order="index", rule=RC)


def test_noise_is_drawn_for_each_layer(rankings: list[torch.Tensor]) -> None:
    net = make_net(NoisyGate(TensorGate(6, 2, (5, 4)), std=1.0))
    net(torch.randn(2, 2, 5, 4))
    assert len(rankings) == NUM_LAYERS
    assert not torch.equal(rankings[0], rankings[1])


def test_a_gate_that_is_gone_leaves_nothing_behind() -> None:
    net = make_net()
    net(torch.randn(1, 2, 5, 4))
    scores, ranking = scores_of(net), weakref.ref(gate_of(net)._ranking)
    assert ranking() is not None
    del net
    gc.collect()
    # The hook on the parameter, which lives on, does not keep the ranking.
    assert ranking() is None
    scores.sum().backward()


def test_scores_that_are_not_finite_are_refused_each_time() -> None:
    net, input = make_net(), torch.randn(1, 2, 5, 4)
    net(input)
    with torch.no_grad():
        scores_of(net)[0, 0, 0] = torch.nan
    for _ in range(2):
        with pytest.raises(ValueError, match="gate scores are not finite"):
            net(input)


def test_hooks_do_not_pile_up_and_rankings_end_with_their_gradient() -> None:
    net, input = make_net(), torch.randn(2, 2, 5, 4)
    scores = scores_of(net)
    for _ in range(3):
        net.zero_grad()
        net(input).square().mean().backward()
        assert not scores._post_accumulate_grad_hooks
        assert gate_of(net)._ranking._kept is None
    net.zero_grad()
    for _ in range(3):
        net(input)
        assert len(scores._post_accumulate_grad_hooks) == 1


def test_gradients_that_accumulate_leave_the_ranking_right(rankings: list[torch.Tensor]) -> None:
    net, input = make_net(), torch.randn(2, 2, 5, 4)
    optimizer = torch.optim.Adam(net.parameters(), lr=1.0, fused=True)
    for _ in range(3):
        net(input).square().mean().backward()
        # A layer alone, between the backward and the step that acts on its gradient.
        net[0](input)
        optimizer.step()
        torch.testing.assert_close(net[2](input), copy.deepcopy(net[2])(input))


def test_frozen_gates_share_too(rankings: list[torch.Tensor]) -> None:
    net, input = make_net(), torch.randn(2, 2, 5, 4)
    gate_of(net).requires_grad_(False)
    for count in (1, 2):
        net(input).square().mean().backward()
        assert len(rankings) == count
