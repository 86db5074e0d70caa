"""The kernels' plan of a frozen layer: made before the first pass, wherever the layer comes from, and kept."""

from __future__ import annotations

import copy
import ctypes
import gc
import pickle
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

import smoe
from geometries import NETWORKS, make_network
from smoe.ops import routed_conv2d
from smoe.ops._operators import native_library

LIBRARY = native_library()
if LIBRARY is None:
    pytest.skip("the kernels are not built here; python -m smoe.ops.backends says why", allow_module_level=True)
builds = LIBRARY.functions.smoe_plan_builds
builds.restype = ctypes.c_int64

# Networks that the kernels sort pixels for.
SORTED = [name for name in NETWORKS if name not in ("any experts", "affine", "unequal families", "index")]


def forget(number: int = 40) -> None:
    """Makes the kernels forget every plan that nobody holds."""
    for _ in range(number):
        routing = torch.rand(1, 7, 96).topk(5, dim=1).indices.int()
        routed_conv2d(torch.randn(1, 9, 8, 12), torch.randn(7, 9, 3, 3), routing)


def tiles_sorted(network: Callable[[torch.Tensor], torch.Tensor], input: torch.Tensor, expected: torch.Tensor) -> int:
    """Compares a pass and returns how many tiles were sorted for it."""
    before = builds()
    with torch.no_grad():
        assert torch.equal(network(input), expected)
    return builds() - before


@pytest.mark.parametrize("name", SORTED)
def test_the_first_pass_sorts_nothing(name: str) -> None:
    network, input = make_network(name)
    expected = network(input)
    forget()
    assert tiles_sorted(network, input, expected) > 0
    forget()
    frozen = smoe.freeze(network)
    forget()
    assert tiles_sorted(frozen, input, expected) == 0
    # More samples have the same plan, or none.
    many = input.expand(5, *input.shape[1:])
    before = builds()
    torch.testing.assert_close(frozen(many), expected.expand(5, *expected.shape[1:]), rtol=1e-4, atol=1e-4)
    assert builds() == before


def loaded(frozen: nn.Module) -> nn.Module:
    other = smoe.freeze(make_network("plane")[0])
    other.load_state_dict(frozen.state_dict())
    return other


def assigned(frozen: nn.Module) -> nn.Module:
    with torch.device("meta"):
        other = smoe.freeze(NETWORKS["plane"][0]())
    other.load_state_dict(frozen.state_dict(), assign=True)
    return other


@pytest.mark.parametrize(
    "renew",
    [
        loaded,
        assigned,
        copy.deepcopy,
        lambda frozen: pickle.loads(pickle.dumps(frozen)),
        lambda frozen: frozen.double().float(),
        smoe.freeze,
    ],
    ids=["load_state_dict", "assign", "deepcopy", "pickle", "to", "freeze"],
)
def test_a_layer_that_comes_from_another_has_its_plan(renew: Callable[[nn.Module], nn.Module]) -> None:
    network, input = make_network("plane")
    frozen = smoe.freeze(network)
    expected = frozen(input)
    renewed = renew(frozen).eval()
    del frozen
    forget()
    assert tiles_sorted(renewed, input, expected) == 0


def test_more_layers_than_the_kernels_keep_plans_of() -> None:
    networks = nn.Sequential(
        *(smoe.SpatialMoE2d.from_experts(8, 24, 8, spatial_shape=(8, 8)) for _ in range(50))
    ).eval()
    for parameter in networks.parameters():
        nn.init.normal_(parameter, std=0.2)
    frozen, input = smoe.freeze(networks), torch.randn(1, 8, 8, 8)
    with torch.no_grad():
        expected = networks(input)
    assert tiles_sorted(frozen, input, expected) == 0
    assert tiles_sorted(networks, input, expected) == 0
    del frozen
    gc.collect()
    forget()
    assert tiles_sorted(networks, input, expected) == 50


def test_a_similar_layer_has_its_own_plan() -> None:
    network, input = make_network("score")
    frozen = smoe.freeze(network)
    expected = frozen(input)
    assert isinstance(network, smoe.SpatialMoE2d)
    # Two choices of one pixel exchanged, as a training may do.
    with torch.no_grad():
        scores = network.gate.get_parameter("scores")
        scores[:, 5, 7] = scores[:, 5, 7].roll(1)
        other = network(input)
    assert not torch.equal(other, expected)
    for _ in range(3):
        assert tiles_sorted(frozen, input, expected) == 0
        assert tiles_sorted(network, input, other) == 0
    with torch.no_grad():
        scores[:, 5, 7] = scores[:, 5, 7].roll(1)
    before = builds()
    network(input)
    assert builds() == before + 1  # the tile that changed, in the plan of the layer that trains
    assert tiles_sorted(frozen, input, expected) == 0


def test_an_exported_program_finds_the_plan() -> None:
    network, input = make_network("plane")
    frozen = smoe.freeze(network)
    expected = frozen(input)
    program = torch.export.export(frozen, (input,)).module()
    forget()
    assert tiles_sorted(program, input, expected) == 0


def test_plans_are_held_and_released_while_others_convolve() -> None:
    network, input = make_network("plane")
    with torch.no_grad():
        expected = network(input)
    wrong: list[int] = []

    def work() -> None:
        with torch.no_grad():
            for turn in range(15):
                frozen = smoe.freeze(network)
                if not torch.equal(frozen(input), expected):
                    wrong.append(turn)
                forget(10)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
