from __future__ import annotations

import numpy as np
import pytest

from smoe.diagnostics import match_experts, shared_choices


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
