"""Frozen networks compute what they computed, without scores."""

from __future__ import annotations

import copy
import pickle

import pytest
import safetensors.torch
import torch
from torch import distributed, nn

import smoe
from geometries import NETWORKS, make_network
from smoe.ops._routing import top_experts
from smoe.options import Order
from smoe_paper.baselines.layers import ConvGate

GRID = (6, 7)


def routed(network: nn.Module) -> smoe.nn.RoutedLayer:
    return next(module for module in network.modules() if isinstance(module, smoe.nn.RoutedLayer))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_frozen_layer_computes_the_same_without_scores(name: str) -> None:
    network, input = make_network(name)
    frozen = smoe.freeze(network)
    assert torch.equal(frozen(input), network(input))
    layer = routed(frozen)
    assert isinstance(layer.gate, smoe.DecidedGate) and not list(layer.gate.parameters())
    # Routing and diagnostics work as before.
    assert torch.equal(layer.routing().indices, routed(network).routing().indices)
    assert (layer.routing().weights == 1.0).all()
    assert smoe.describe(frozen) is not None


def test_experts_go_on_learning_and_the_routing_stays() -> None:
    layer, input = make_network("plane")
    frozen = smoe.freeze(layer).train()
    assert isinstance(frozen, smoe.SpatialMoE2d)
    before, weight = frozen.routing().indices.clone(), frozen.get_parameter("weight").detach().clone()
    optimizer = torch.optim.SGD(frozen.parameters(), lr=0.1)
    frozen(input).square().mean().backward()
    optimizer.step()
    assert torch.equal(frozen.routing().indices, before)
    assert not torch.equal(frozen.get_parameter("weight"), weight)
    # The network it was made of is left alone.
    assert isinstance(layer, smoe.SpatialMoE2d)
    assert isinstance(layer.gate, smoe.FactorisedGate)


ORDERS: tuple[Order, ...] = ("families", "score", "index")


def decided(order: Order, *, num_experts: int = 5, num_selected: int = 2) -> smoe.DecidedGate:
    """A gate with a choice by scores that are random."""
    scores = torch.randn(1, num_experts, GRID[0] * GRID[1])
    indices = top_experts(scores, num_selected, order)[0]
    return smoe.DecidedGate(indices.unflatten(1, GRID), num_experts, order=order)


@pytest.mark.parametrize(("num_experts", "dtype"), [(5, torch.uint8), (256, torch.uint8), (257, torch.int16)])
@pytest.mark.parametrize("order", ORDERS)
def test_choices_are_saved_in_the_smallest_integers(order, num_experts, dtype, tmp_path) -> None:
    gate = decided(order, num_experts=num_experts)
    state = gate.state_dict()
    assert (state["indices"].dtype, tuple(state["indices"].shape)) == (dtype, (2, *GRID))
    assert set(state) == {"indices", "order_code"}
    safetensors.torch.save_file(state, tmp_path / "gate.safetensors")
    other = decided(order, num_experts=num_experts)
    assert not torch.equal(other.indices, gate.indices)
    other.load_state_dict(safetensors.torch.load_file(tmp_path / "gate.safetensors"))
    assert torch.equal(other.indices, gate.indices) and other.indices.dtype == torch.int32
    assert torch.equal(pickle.loads(pickle.dumps(gate)).indices, gate.indices)


def first_is(value: int):
    """Sets the first choice."""
    return lambda indices: indices.flatten().index_fill(0, torch.tensor(0), value).view_as(indices)


@pytest.mark.parametrize(
    ("order", "name", "change", "message"),
    [
        ("score", "indices", lambda indices: indices[:, :-1], r"indices: .*integers \(2, 6, 7\).*shape \(2, 5, 7\)"),
        ("score", "indices", lambda indices: indices.float(), r"indices: .*integers.*float32"),
        ("score", "indices", first_is(7), r"indices: .*\[0, 4\].*got 7 at slot 0, row 0, column 0"),
        ("index", "indices", torch.zeros_like, "indices: .*expert 0 comes again at slot 1, row 0, column 0"),
        ("families", "indices", first_is(3), r"indices: slot 0 .*family, \[0, 3\), got 3"),
        ("score", "order_code", lambda code: code + 1, "order is 'score', but the gate was saved with"),
    ],
)
def test_damaged_choices_are_refused_and_change_nothing(order: Order, name: str, change, message: str) -> None:
    gate, state = decided(order), decided(order).state_dict()
    state[name] = change(state[name].clone())
    before = gate.indices.clone()
    with pytest.raises(RuntimeError, match=message):
        gate.load_state_dict(state)
    if name == "indices":
        assert torch.equal(gate.indices, before)
    with pytest.raises(RuntimeError, match=r'Missing key.*"indices"'):
        gate.load_state_dict({key: value for key, value in state.items() if key == "order_code"})


def test_memory_without_values_holds_a_choice_that_kernels_can_read() -> None:
    for order in ORDERS:
        frozen = smoe.freeze(
            smoe.SpatialMoE2d.from_experts(16, 5, 2, gate=smoe.TensorGate(5, 2, GRID, order=order))
        ).eval()
        state = frozen.state_dict()
        for device in ("cpu", "meta"):
            moved = copy.deepcopy(frozen).to(device).to_empty(device="cpu")
            moved.get_buffer("gate.indices").fill_(1 << 30)  # as the memory may be
            moved = moved.to_empty(device="cpu") if device == "cpu" else moved.cpu()
            indices = moved.get_buffer("gate.indices")
            smoe.DecidedGate(indices[0].unflatten(1, GRID), 5, order=order)  # checks
            moved.load_state_dict(state)
            input = torch.randn(1, 16, *GRID)
            assert torch.equal(moved(input), frozen(input))


@pytest.mark.parametrize("options", [{"weighted": True, "rule": "end_to_end"}, {"damping": 0.1, "rule": "rc"}])
def test_gates_whose_scores_are_needed_stay_but_do_not_learn(options) -> None:
    layer = smoe.SpatialMoE2d.from_experts(3, 4, 2, spatial_shape=GRID, **options)
    frozen = smoe.freeze(layer)
    assert isinstance(frozen.gate, smoe.TensorGate)
    assert frozen.rule == smoe.rules.Frozen()
    looking = smoe.freeze(smoe.SpatialMoE2d.from_experts(3, 4, 2, gate=ConvGate(3, 4, 2)))
    assert isinstance(looking.gate, ConvGate)


def test_a_network_without_layers_and_bad_indices_are_refused() -> None:
    with pytest.raises(ValueError, match="Conv2d has no SMoE layer to freeze"):
        smoe.freeze(nn.Conv2d(1, 1, 1))
    with pytest.raises(TypeError, match=r"freeze takes a torch.nn.Module, got GridRegressor; .* give its net"):
        smoe.freeze(smoe.GridRegressor())  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="got 3"):
        smoe.DecidedGate(torch.tensor([[0, 3]]), num_experts=3)
    with pytest.raises(ValueError, match="expert 1 comes again at slot 1, row 0, column 0"):
        smoe.DecidedGate(torch.tensor([[1, 0], [1, 2]]), num_experts=3)
    with pytest.raises(ValueError, match=r"slot 1 must select an expert of its family, \[2, 4\), got 1 at pixel 1"):
        smoe.DecidedGate(torch.tensor([[1, 0], [2, 1]]), num_experts=4, order="families")
    with pytest.raises(ValueError, match="integers"):
        smoe.DecidedGate(torch.zeros(1, 3), num_experts=3)
    layer = smoe.SpatialMoE2d.from_experts(1, 3, 1, spatial_shape=GRID)
    with pytest.raises(ValueError, match="the layer needs"):
        layer._replace_gate(smoe.TensorGate(3, 1, (2, 2)))


@pytest.mark.skipif(not distributed.is_available(), reason="torch was built without distributed")
def test_a_sharded_network_is_refused() -> None:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        net = smoe.nn.shard(nn.Sequential(smoe.SpatialMoE2d.from_experts(3, 4, 2, spatial_shape=GRID)))
        with pytest.raises(RuntimeError, match="the parameters of FSDPSequential are sharded among processes"):
            smoe.freeze(net)
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_every_dtype(dtype: torch.dtype) -> None:
    layer, input = make_network("plane")
    moved = smoe.freeze(layer).to(dtype)
    layer, input = layer.to(dtype), input.to(dtype)
    assert torch.equal(smoe.freeze(layer)(input), layer(input))
    assert moved.get_buffer("gate.indices").dtype == torch.int32
    assert moved(input).dtype == dtype


def test_a_converted_network_with_batch_norm() -> None:
    input = torch.randn(4, 3, *GRID)
    plain = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
    network = smoe.convert(plain, example_input=input, num_experts=2.0)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(3):
        network.train()(input).square().mean().backward()
        optimizer.step()
    # In training mode too: what is decided is what evaluation computes.
    frozen = smoe.freeze(network).eval()
    assert torch.equal(frozen(input), network.eval()(input))
    assert torch.equal(smoe.freeze(frozen)(input), frozen(input))
    channels_last = input.to(memory_format=torch.channels_last)
    torch.testing.assert_close(frozen(channels_last), frozen(input), rtol=1e-4, atol=1e-5)
    compiled = torch.compile(frozen, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(input), frozen(input), rtol=1e-4, atol=1e-5)


def test_a_gate_that_one_layer_needs_scores_of_is_decided_for_the_others() -> None:
    gate = smoe.TensorGate(4, 2, GRID)
    net = nn.Sequential(
        smoe.SpatialMoE2d.from_experts(3, 4, 2, gate=gate, rule="rc", weighted=True),
        smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=gate, rule="rc"),
    ).eval()
    frozen, input = smoe.freeze(net), torch.randn(2, 3, *GRID)
    assert [type(layer.gate) for layer in frozen] == [smoe.TensorGate, smoe.DecidedGate]
    twice = smoe.freeze(nn.Sequential(net[1], smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=gate, rule="rc")))
    assert twice[0].gate is twice[1].gate
    assert torch.equal(frozen(input), net(input))


def test_a_frozen_layer_on_the_meta_device() -> None:
    layer = smoe.SpatialMoE2d.from_experts(3, 6, 2, spatial_shape=GRID, device="meta")
    frozen = smoe.freeze(layer)
    assert frozen(torch.empty(2, 3, *GRID, device="meta")).shape == (2, 2, *GRID)
    assert frozen.state_dict()["gate.indices"].is_meta
