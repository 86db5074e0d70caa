from __future__ import annotations

import numpy as np
import pytest

from smoe.diagnostics import neighbour_agreement, similarity_components


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
def test_pixels_that_share_experts_are_close(pixels: tuple[int, ...]) -> None:
    # Two sorts of pixels, and one pixel that shares one expert with each sort.
    routing = np.array([[0] * 6 + [2] * 6, [1] * 6 + [3] * 6])
    routing[:, 5] = (0, 3)
    components = similarity_components(routing.reshape(2, *pixels), 5)
    assert components.shape == (3, *pixels)
    first, mixed, second = components.reshape(3, -1)[:, [0, 5, 11]].T
    assert np.allclose(components.reshape(3, -1)[:, :5].T, first)
    assert np.allclose(components.reshape(3, -1)[:, 6:].T, second)
    apart = np.linalg.norm(first - second)
    assert 0 < np.linalg.norm(mixed - first) < apart and 0 < np.linalg.norm(mixed - second) < apart
    # In units of the first's deviation, and each smaller than the one before.
    deviations = components.reshape(3, -1).std(axis=1)
    assert deviations[0] == pytest.approx(1.0) and deviations[0] >= deviations[1] >= deviations[2]


def test_equal_pixels_have_no_components() -> None:
    assert not similarity_components(np.zeros((1, 3, 4), dtype=int), 2).any()
    assert similarity_components(np.array([[0, 1, 0]]), 2, 5).shape == (5, 3)
