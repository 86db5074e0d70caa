"""The plan of the list kernels: sorted again only where the routing changed, and never stale."""

from __future__ import annotations

import ctypes

import pytest
import torch

from smoe.ops import routed_conv2d
from smoe.ops._conv_kernels import dense_routed_conv
from smoe.ops._operators import native_library

LIBRARY = native_library()
if LIBRARY is None:
    pytest.skip("the kernels are not built here; python -m smoe.ops.backends says why", allow_module_level=True)
builds = LIBRARY.functions.smoe_plan_builds
builds.restype = ctypes.c_int64

# One sample: the list kernels serve it.
INPUT, WEIGHT = torch.randn(1, 9, 30, 40), torch.randn(7, 9, 3, 3)


def make_routing() -> torch.Tensor:
    return torch.rand(1, 7, 1200).topk(5, dim=1).indices.int()


def check(indices: torch.Tensor, weight: torch.Tensor = WEIGHT) -> int:
    """Compares with the dense backend and returns how many tiles were sorted for it."""
    before = builds()
    expected = dense_routed_conv(INPUT, weight, indices)
    torch.testing.assert_close(routed_conv2d(INPUT, weight, indices), expected, rtol=1e-4, atol=1e-4)
    return builds() - before


@pytest.fixture(autouse=True)
def _no_plans() -> None:
    assert LIBRARY is not None
    LIBRARY.functions.smoe_plan_clear()


def test_a_routing_is_sorted_once() -> None:
    indices = make_routing()
    assert check(indices) > 1
    assert check(indices) == 0
    assert check(indices.clone()) == 0


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_a_change_in_place_is_seen_and_only_its_tile_sorted(dtype: torch.dtype) -> None:
    indices = make_routing().to(dtype)
    num_tiles = check(indices)
    pixel = 17 * 40 + 23
    indices[0, :, pixel] = indices[0, :, pixel].flip(0)
    assert check(indices) == 1
    indices.copy_(make_routing())
    assert check(indices) == num_tiles


# A plan remembers its routing in one, two or four bytes a number.
@pytest.mark.parametrize("num_experts", [256, 257, 300])
def test_a_change_to_any_expert_is_seen(num_experts: int) -> None:
    weight = torch.randn(num_experts, 9, 3, 3)
    indices = torch.zeros(1, 1, 1200, dtype=torch.int32)
    check(indices, weight)
    for expert in (num_experts - 1, num_experts - 2, 0):
        indices[0, 0, 1199] = expert
        assert check(indices, weight) == 1
        assert check(indices, weight) == 0
