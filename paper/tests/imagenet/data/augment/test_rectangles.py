from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from smoe_paper.imagenet.augment import draw_crop, erase

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


class Script(np.random.Generator):
    """A generator that returns what it is told to, in order, and notes what was asked."""

    def __init__(self, uniform: list[float], integers: list[int]) -> None:
        super().__init__(np.random.PCG64(0))
        self.uniform_values, self.integer_values, self.asked = uniform, integers, []

    def uniform(self, low: float = 0.0, high: float = 1.0, size: None = None) -> float:  # type: ignore[override]
        # Told as the place within the range.
        return low + (high - low) * self.uniform_values.pop(0)

    def integers(self, low: int, *_: object, **__: object) -> int:  # type: ignore[override]
        self.asked.append(low)
        return self.integer_values.pop(0)


def test_a_crop_is_the_published_one() -> None:
    # Half of the range of areas: (0.08 + 1) / 2 = 0.54 of 300 x 400; the middle of the logarithms is the ratio 1.
    side = round(math.sqrt(0.54 * 300 * 400))
    rng = Script([0.5, 0.5], [11, 22])
    assert draw_crop(rng, 300, 400, SCALE, RATIO) == (11, 22, side, side)
    assert rng.asked == [300 - side + 1, 400 - side + 1]
    # Largest area and ratio do not fit into a square; the next draw does: 0.08 of the area, 4 wide for 3 high.
    rng = Script([1.0, 1.0, 0.0, 1.0], [0, 5])
    expected = (0, 5, round(math.sqrt(0.08 * 1e4 * 3 / 4)), round(math.sqrt(0.08 * 1e4 * 4 / 3)))
    assert draw_crop(rng, 100, 100, SCALE, RATIO) == expected


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    # Too wide: 4/3 of the height, central. Too high: 4/3 of the width. Within the range: all of it.
    [(30, 1000, (0, 480, 30, 40)), (1000, 30, (480, 0, 40, 30)), (30, 30, (0, 0, 30, 30))],
)
def test_the_crop_of_last_resort(height: int, width: int, expected: tuple[int, ...]) -> None:
    # The largest area of the largest ratio, ten times, fits into none of them.
    assert draw_crop(Script([1.0, 1.0] * 10, []), height, width, SCALE, RATIO) == expected


def test_erasing_is_the_published_one() -> None:
    image = torch.ones(3, 50, 60)
    # The middle of the areas, 0.175 of 3000; the middle of the logarithms of 0.3 and 3.3.
    ratio = math.sqrt(0.3 * 3.3)
    rows, columns = round(math.sqrt(0.175 * 3000 * ratio)), round(math.sqrt(0.175 * 3000 / ratio))
    rng = Script([0.5, 0.5], [3, 4])
    erase(rng, image)
    assert rng.asked == [50 - rows + 1, 60 - columns + 1]
    expected = torch.ones(3, 50, 60)
    expected[:, 3 : 3 + rows, 4 : 4 + columns] = 0
    assert torch.equal(image, expected)


def test_nothing_is_erased_if_nothing_fits() -> None:
    image = torch.ones(3, 2, 100)
    # A third of the area at 3.3 high for 1 wide is higher than the image, ten times.
    erase(Script([1.0, 1.0] * 10, []), image)
    assert bool((image == 1).all())
