from __future__ import annotations

import numpy as np
import pytest
import torch

from smoe.diagnostics import expert_use, selections
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
