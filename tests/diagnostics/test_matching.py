from __future__ import annotations

import numpy as np
import pytest

from smoe.diagnostics.matching import agreement, matched_map, regions_of_experts

REGION_MAP = np.array([[0, 0, 1], [0, 1, 1]])


def test_permuted_experts_agree_fully() -> None:
    routing_map = np.array([2, 0])[REGION_MAP]
    assert regions_of_experts(routing_map, REGION_MAP, 4).tolist() == [1, -1, 0, -1]
    np.testing.assert_array_equal(matched_map(routing_map, REGION_MAP, 4), REGION_MAP)
    assert agreement(routing_map, REGION_MAP, 4) == 1.0


def test_one_wrong_pixel() -> None:
    # Expert 1 serves region 0 and one pixel of region 1: 5 of 6 agree.
    routing_map = np.array([[1, 1, 0], [1, 1, 0]])
    assert regions_of_experts(routing_map, REGION_MAP, 2).tolist() == [1, 0]
    assert agreement(routing_map, REGION_MAP, 2) == 5 / 6


def test_experts_may_share_a_region() -> None:
    routing_map = np.array([[0, 1, 2], [0, 2, 2]])
    assert regions_of_experts(routing_map, REGION_MAP, 3).tolist() == [0, 0, 1]
    assert agreement(routing_map, REGION_MAP, 3) == 1.0


def test_collapsed_routing_agrees_with_the_largest_region() -> None:
    region_map = np.array([[0, 1, 1, 1]])
    assert agreement(np.zeros((1, 4), dtype=int), region_map, 3) == 0.75


def test_equal_regions_go_to_the_lowest() -> None:
    assert regions_of_experts(np.zeros((1, 2), dtype=int), np.array([[1, 0]]), 1).tolist() == [0]


def test_small_integer_types_do_not_overflow() -> None:
    region_map = np.arange(100, dtype=np.int8)[None]
    routing_map = region_map[:, ::-1]
    np.testing.assert_array_equal(regions_of_experts(routing_map, region_map, 100), np.arange(100)[::-1])


@pytest.mark.parametrize(
    ("routing_map", "region_map", "message"),
    [
        (np.array([[0, 3]]), np.array([[0, 1]]), r"\[0, 2\], got \[0, 3\]"),
        (np.array([[0, -1]]), np.array([[0, 1]]), r"\[0, 2\], got \[-1, 0\]"),
        (np.array([[0, 1]]), np.array([[0, -1]]), "got -1"),
        (np.array([[0, 1]]), np.array([[0], [1]]), r"shape \(1, 2\), but region_map \(2, 1\)"),
        (np.array([[0.0, 1.0]]), np.array([[0, 1]]), "routing_map must hold integers"),
        (np.array([[0, 1]]), np.array([0, 1]), r"region_map must hold integers of shape \(H, W\)"),
    ],
)
def test_bad_maps_are_refused(routing_map: np.ndarray, region_map: np.ndarray, message: str) -> None:
    for function in (regions_of_experts, matched_map, agreement):
        with pytest.raises(ValueError, match=message):
            function(routing_map, region_map, 3)
