"""Choices of experts: use, regions, neighbours, matching of two routings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from smoe.diagnostics import (
    expert_use,
    match_experts,
    neighbour_agreement,
    region_agreement,
    region_information,
    regions_of_experts,
    selections,
    shared_choices,
    similarity_colours,
)
from smoe.losses import latitude_weights

LATITUDE = np.array([-60.0, 0.0, 60.0])


def test_selections() -> None:
    routing = torch.tensor([[[2, 0]], [[1, 2]]])
    # Pixel 0 has the experts 2 and 1, pixel 1 has 0 and 2; nobody has 3.
    expected = [[[False, True]], [[True, False]], [[True, True]], [[False, False]]]
    assert selections(routing, 4).tolist() == expected
    with pytest.raises(ValueError, match=r"must be in \[0, 1\], got \[0, 2\]"):
        selections(routing, 2)


@pytest.mark.parametrize("pixels", [(4,), (2, 2), (1, 2, 2)])
def test_use_is_a_share_of_the_pixels(pixels: tuple[int, ...]) -> None:
    routing = np.array([[0, 0, 0, 1], [1, 1, 2, 2]]).reshape(2, *pixels)
    assert expert_use(routing, 4).tolist() == [0.75, 0.75, 0.5, 0.0]


def test_use_counts_area() -> None:
    # Rows at 60 degrees have half the area of a row at the equator: 1/4, 1/2, 1/4 of the globe.
    routing = np.repeat([[[0], [1], [0]]], 4, axis=2)
    assert expert_use(routing, 2, latitude_weights(LATITUDE)[:, None]) == pytest.approx([0.5, 0.5])
    assert expert_use(routing, 2) == pytest.approx([2 / 3, 1 / 3])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(3), r"pixel_weights of shape \(3,\) do not fit pixels of shape \(4,\)"),
        (np.array([1.0, -1.0, 1.0, 1.0]), "must not be negative"),
        (np.zeros(4), "a sum of 0"),
        (np.full(4, np.nan), "a sum of nan"),
    ],
)
def test_bad_weights_are_refused(weights: np.ndarray, message: str) -> None:
    routing = np.zeros((1, 4), dtype=int)
    with pytest.raises(ValueError, match=message):
        expert_use(routing, 2, weights)


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


@pytest.mark.parametrize("pixels", [(50,), (5, 10), (2, 5, 5)])
def test_renamed_experts_are_found_again(pixels: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    routing = rng.random((6, *pixels)).argsort(axis=0)[:2]
    names = rng.permutation(6)
    # In another order, too: the sets of experts count.
    other = names[routing][::-1]
    assert match_experts(routing, other, 6).tolist() == names.tolist()
    assert shared_choices(routing, other, 6) == 1.0


def test_partners_are_one_to_one() -> None:
    routing = np.array([[0, 0, 0, 1, 1, 1]])
    # Both experts share most with expert 0 of the other run: 3 and 2 pixels. Only one of them can have it.
    other = np.array([[0, 0, 0, 0, 0, 1]])
    assert match_experts(routing, other, 2).tolist() == [0, 1]
    assert shared_choices(routing, other, 2) == 4 / 6


def test_other_grids_are_refused() -> None:
    with pytest.raises(ValueError, match=r"pixels of different shapes: \(4,\) and \(5,\)"):
        match_experts(np.zeros((1, 4), dtype=int), np.zeros((1, 5), dtype=int), 2)
    with pytest.raises(ValueError, match=r"must be in \[0, 1\], got \[2, 2\]"):
        shared_choices(np.zeros((1, 4), dtype=int), np.full((1, 4), 2), 2)


def test_agreement_of_neighbours_equals_loops() -> None:
    routing = np.random.default_rng(0).random((4, 2, 3, 3)).argsort(axis=0)[:2]
    expected = np.zeros(routing.shape[1:])
    for place in np.ndindex(expected.shape):
        shares = []
        for axis in range(3):
            for step in (-1, 1):
                there = list(place)
                there[axis] += step
                if 0 <= there[axis] < expected.shape[axis]:
                    own, others = (set(routing[(slice(None), *where)].tolist()) for where in (place, there))
                    shares.append(len(own & others) / 2)
        expected[place] = np.mean(shares)
    np.testing.assert_allclose(neighbour_agreement(routing, 4), expected)
    assert neighbour_agreement(np.zeros((1, 1, 1), dtype=int), 2).tolist() == [[0.0]]


@pytest.mark.parametrize("pixels", [(12,), (3, 4), (2, 2, 3)])
def test_pixels_that_share_experts_have_like_colours(pixels: tuple[int, ...]) -> None:
    # Two sorts of pixels, and one pixel that shares one expert with each sort.
    routing = np.array([[0] * 6 + [2] * 6, [1] * 6 + [3] * 6])
    routing[:, 5] = (0, 3)
    colours = similarity_colours(routing.reshape(2, *pixels), 5)
    assert colours.shape == (*pixels, 3) and colours.min() >= 0 and colours.max() <= 1
    flat = colours.reshape(-1, 3)
    first, mixed, second = flat[[0, 5, 11]]
    assert np.allclose(flat[:5], first) and np.allclose(flat[6:], second) and np.abs(first - second).max() > 0.3
    apart = np.linalg.norm(first - second)
    assert 0 < np.linalg.norm(mixed - first) < apart and 0 < np.linalg.norm(mixed - second) < apart
    # One scale for all three; where two pixels have nearly all the weight, they alone decide it.
    assert flat.std(axis=0)[0] == pytest.approx(0.5 / 2.2) and (np.diff(flat.std(axis=0)) <= 0).all()
    weights = np.where(np.arange(12) % 11 == 0, 1.0, 1e-9).reshape(pixels)
    weighted = similarity_colours(routing.reshape(2, *pixels), 5, weights).reshape(-1, 3)
    assert np.abs(weighted[0] - weighted[11])[0] == pytest.approx(1 / 2.2, abs=1e-3)
    assert np.allclose(similarity_colours(np.zeros((1, *pixels), dtype=int), 2), 0.5)
