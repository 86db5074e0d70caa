"""From one rule to another: by a state_dict, by assignment between epochs, and with gates that layers share."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import smoe
from smoe.options import Order
from smoe.rules import Damping, RoutingClassification, Rule, resolve_rule

GRID = (5, 6)
RULES: list[Rule] = [
    RoutingClassification.released(),
    *map(resolve_rule, ("rc", "end_to_end", "frozen")),
]
PAIRS = list(itertools.pairwise([*RULES, *RULES[::2]]))


def make_net(rule: Rule | str, *, is_shared: bool = True, order: Order = "score", seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    gate = smoe.TensorGate(4, 2, GRID, order=order)
    other = gate if is_shared else smoe.TensorGate(4, 2, GRID, order=order)
    return nn.Sequential(
        smoe.SpatialMoE2d.from_experts(1, 4, 2, gate=gate, rule=rule),
        nn.Tanh(),
        smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=other, rule=rule),
    )


def layers_of(net: nn.Sequential) -> list[smoe.SpatialMoE2d]:
    return [layer for layer in net if isinstance(layer, smoe.SpatialMoE2d)]


def train(net: nn.Module, num_steps: int = 5, *, seed: int = 1, optimizer: torch.optim.Optimizer | None = None) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(num_steps):
        x = torch.randn(4, 1, *GRID, generator=generator)
        target = torch.randn(4, 2, *GRID, generator=generator)
        optimizer.zero_grad()
        F.mse_loss(net(x), target).backward()
        optimizer.step()


def set_rule(net: nn.Sequential, rule: Rule | str) -> None:
    for layer in layers_of(net):
        layer.rule = rule


def assert_same_state(actual: nn.Module, expected: nn.Module) -> None:
    states = actual.state_dict(), expected.state_dict()
    assert states[0].keys() == states[1].keys()
    for name, value in states[1].items():
        assert torch.equal(states[0][name], value), name


def loaded(net: nn.Sequential, device: str) -> nn.Sequential:
    """Another net with the state of this one; made on the meta device, it takes the tensors of the state."""
    with torch.device(device):
        other = make_net(layers_of(net)[0].rule, seed=5)
    other.load_state_dict(copy.deepcopy(net.state_dict()), assign=device == "meta")
    assert not any(layer._signal.num_nonfinite.is_meta for layer in layers_of(other))
    return other


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda net: pickle.loads(pickle.dumps(net)),
    "state": lambda net: loaded(net, "cpu"),
    "state on meta": lambda net: loaded(net, "meta"),
}


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("how", COPIES)
def test_a_copy_goes_on_alike_and_apart(rule: Rule, how: str) -> None:
    net = make_net(rule)
    train(net, 3)
    twin = COPIES[how](net)
    before = copy.deepcopy(net.state_dict())
    train(twin, 5, seed=2)
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name
    train(net, 5, seed=2)
    assert_same_state(twin, net)
    # The copied gate knows the copied learners.
    set_rule(twin, "end_to_end")
    assert twin[0].gate.get_parameter("scores").requires_grad
    train(twin, 1)


@pytest.mark.parametrize("is_shared", [True, False], ids=["shared", "apart"])
@pytest.mark.parametrize(("first", "second"), PAIRS, ids=str)
def test_a_rule_can_be_changed_between_epochs(first: Rule, second: Rule, is_shared: bool) -> None:
    net = make_net(first, is_shared=is_shared)
    train(net)
    set_rule(net, second)
    assert [layer.rule for layer in layers_of(net)] == [second, second]
    fresh = make_net(second, is_shared=is_shared, seed=5)
    fresh.load_state_dict(net.state_dict())
    requires = [[parameter.requires_grad for parameter in each.parameters()] for each in (net, fresh)]
    assert requires[0] == requires[1]
    for each in (net, fresh):
        train(each, 7, seed=2)
    assert_same_state(net, fresh)


def test_the_order_is_saved_and_another_is_refused() -> None:
    net, other = make_net("frozen", order="index"), make_net("frozen", order="families")
    with pytest.raises(RuntimeError, match="order is 'families', but the gate was saved with 'index'"):
        other.load_state_dict(net.state_dict())


def test_a_layer_does_not_follow_an_optimiser_beside_one_that_learns_alone() -> None:
    net = make_net("rc", order="families")
    layers_of(net)[0].rule = "straight_through"
    with pytest.raises(ValueError, match="learns beside the optimiser, in another layer that shares it"):
        train(net, 1)


def test_damping_is_separate_and_off_by_default() -> None:
    first, second = layers_of(make_net(RULES[0]))
    assert first.damping is None and first._active_damping == Damping(0.0, 0.3)
    first.rule = "rc"
    assert first._active_damping is None
    second.damping = Damping(0.5)
    assert second._active_damping == Damping(0.5)
    second.rule = "frozen"
    assert second._active_damping == Damping(0.5)


def test_a_frozen_gate_stays_as_it_is_whatever_the_optimiser_remembers() -> None:
    net = make_net("rc")
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.1)
    train(net, 3, optimizer=optimizer)
    set_rule(net, "frozen")
    before = copy.deepcopy(net.state_dict())
    train(net, 3, optimizer=optimizer)
    assert torch.equal(net.state_dict()["0.gate.scores"], before["0.gate.scores"])
    assert not torch.equal(net.state_dict()["0.weight"], before["0.weight"])
    set_rule(net, "rc")
    train(net, 1, optimizer=optimizer)
    assert not torch.equal(net.state_dict()["0.gate.scores"], before["0.gate.scores"])


def test_a_gate_learns_while_one_of_its_layers_trains_it() -> None:
    net = make_net("frozen")
    first, second = layers_of(net)
    scores = first.gate.get_parameter("scores")
    assert not scores.requires_grad
    second.rule = "rc"
    assert scores.requires_grad
    train(net, 1)
    assert scores.grad is not None and scores.grad.any()
    second.rule = "frozen"
    assert not scores.requires_grad


def test_a_gate_that_the_user_froze_is_not_freed_by_a_rule() -> None:
    net = make_net("rc")
    gate = layers_of(net)[0].gate
    gate.requires_grad_(False)
    for rule in ("frozen", "rc", "end_to_end"):
        set_rule(net, rule)
        assert not gate.get_parameter("scores").requires_grad


def test_a_layer_that_is_gone_leaves_its_gate_to_others() -> None:
    net = make_net("frozen")
    gate = layers_of(net)[0].gate
    del net
    layer = smoe.SpatialMoE2d.from_experts(1, 4, 2, gate=gate, rule="rc")
    assert gate.get_parameter("scores").requires_grad
    layer(torch.randn(2, 1, *GRID)).square().mean().backward()
    assert gate.get_parameter("scores").grad is not None


@pytest.fixture
def _process_group() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("_process_group")
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
@pytest.mark.parametrize("start", ["rc", "frozen"])
def test_a_wrapped_net_can_wait_and_learn(start: str) -> None:
    """DistributedDataParallel expects gradients of the same parameters in every pass: a frozen gate receives zeros."""
    net = make_net(start)
    wrapped = DistributedDataParallel(net)
    scores = layers_of(net)[0].gate.get_parameter("scores")
    for rule in ("frozen", "rc", "frozen"):
        set_rule(net, rule)
        before = scores.detach().clone()
        train(wrapped, 3)
        assert scores.grad is not None
        assert torch.equal(scores, before) == (rule == "frozen")
