from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from smoe.diagnostics import region_agreement, region_information, regions_of_experts

REGIONS = np.array([[0, 0, 1], [0, 1, 1]])
FUNCTIONS: list[Callable[..., Any]] = [region_information, regions_of_experts, region_agreement]


@pytest.mark.parametrize(
    ("routing", "num_experts", "expected", "agreement"),
    [
        ([[[2, 2, 0], [2, 0, 0]]], 4, [1, -1, 0, -1], 1.0),
        # Expert 1 serves region 0 and one pixel of region 1.
        ([[[1, 1, 0], [1, 1, 0]]], 2, [1, 0], 5 / 6),
        # Experts may share a region.
        ([[[0, 1, 2], [0, 2, 2]]], 3, [0, 0, 1], 1.0),
        # Expert 0 serves every pixel, so it belongs to the first of two equal regions and is wrong at half of them.
        ([[[0, 0, 0], [0, 0, 0]], [[1, 1, 2], [1, 2, 2]]], 3, [0, 0, 1], 9 / 12),
    ],
)
def test_regions_by_hand(routing: list, num_experts: int, expected: list[int], agreement: float) -> None:
    assert regions_of_experts(np.array(routing), REGIONS, num_experts).tolist() == expected
    assert region_agreement(np.array(routing), REGIONS, num_experts) == agreement


def test_small_integer_types_do_not_overflow() -> None:
    regions = np.arange(100, dtype=np.int8)
    np.testing.assert_array_equal(regions_of_experts(regions[None, ::-1], regions, 100), np.arange(100)[::-1])


@pytest.mark.parametrize("pixels", [(4,), (1, 4), (2, 1, 2)])
def test_information_on_any_grid(pixels: tuple[int, ...]) -> None:
    regions = torch.tensor([0, 0, 1, 1]).view(pixels)

    def information(routing: list[list[int]], num_experts: int) -> float:
        return region_information(torch.tensor(routing).view(-1, *pixels), regions, num_experts)

    # Each region has experts of its own: one of them tells the region.
    assert information([[0, 1, 2, 2], [1, 0, 3, 3]], 4) == pytest.approx(1.0)
    # All experts serve both regions alike.
    assert information([[0, 1, 0, 1]], 4) == pytest.approx(0.0)
    # Expert 0 serves one pixel of the first region, expert 1 the rest: H(1/2) + H(1/4) - H(1/4, 1/4, 1/2) bits.
    assert information([[0, 1, 1, 1]], 2) == pytest.approx(1.0 + 0.8112781 - 1.5)
    assert region_information(torch.zeros(1, *pixels, dtype=torch.int32), torch.zeros_like(regions), 2) == 0.0


@pytest.mark.parametrize(
    ("routing", "regions", "message"),
    [
        (np.array([[0, 3]]), np.array([0, 1]), r"a routing must be in \[0, 2\], got \[0, 3\]"),
        (np.array([[0, -1]]), np.array([0, 1]), r"a routing must be in \[0, 2\], got \[-1, 0\]"),
        (np.array([[0, 1]]), np.array([0, -1]), r"regions must be 0, 1, \.\.\., got -1"),
        (np.array([[0, 1]]), np.array([[0], [1]]), r"the shape \(2, 1\), but the routing's pixels \(2,\)"),
        (np.array([[0.0, 1.0]]), np.array([0, 1]), r"must hold integers of shape \(E, \.\.\.\), got float64"),
        (np.array([0, 1]), np.array([0, 1]), r"must hold integers of shape \(E, \.\.\.\), got int64 of shape \(2,\)"),
        (np.zeros((1, 0), dtype=int), np.zeros(0, dtype=int), r"of shape \(1, 0\)"),
        (np.array([[0, 1]]), np.array([0.0, 1.0]), "regions must be integers, got float64"),
    ],
)
def test_bad_maps_are_refused(routing: np.ndarray, regions: np.ndarray, message: str) -> None:
    for function in FUNCTIONS:
        with pytest.raises(ValueError, match=message):
            function(routing, regions, 3)
