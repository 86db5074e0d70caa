"""Augmentations: mixing, crops and erased rectangles, TrivialAugment."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from image_folders import make_picture
from smoe_paper.imagenet.folders import OPERATIONS, cutmix, draw_crop, draw_operation, erase, mix, mixup

IMAGES = torch.randn(4, 3, 8, 10, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([2, 0, 1, 1])
SHARES = F.one_hot(LABELS, 3).float()


class Beta(np.random.Generator):
    """Draws a given share, and its own integers."""

    def __init__(self, share: float, integers: list[int]) -> None:
        super().__init__(np.random.PCG64(0))
        self.share, self.places = share, integers

    def beta(self, a: float, b: float, size: None = None) -> float:  # type: ignore[override]
        assert a == b
        return self.share

    def integers(self, low: int, *_: object, **__: object) -> int:  # type: ignore[override]
        return self.places.pop(0)


def test_mixup() -> None:
    images, shares = mixup(Beta(0.7, []), IMAGES, SHARES, 0.2)
    for number in range(4):
        torch.testing.assert_close(images[number], 0.7 * IMAGES[number] + 0.3 * IMAGES[number - 1])
    # Classes 2, 0, 1, 1 with those before them, 1, 2, 0, 1.
    expected = torch.tensor([[0, 0.3, 0.7], [0.7, 0, 0.3], [0.3, 0.7, 0], [0, 1.0, 0]])
    torch.testing.assert_close(shares, expected)


def test_cutmix() -> None:
    # Half of the root of 0.36 is 0.3: 3 columns and int(2.4) = 2 rows to each side of column 8 and row 1.
    images, shares = cutmix(Beta(0.64, [8, 1]), IMAGES, SHARES, 1.0)
    inside = torch.zeros(8, 10, dtype=torch.bool)
    inside[0:3, 5:10] = True
    for number in range(4):
        assert torch.equal(images[number], torch.where(inside, IMAGES[number - 1], IMAGES[number]))
    # 15 of 80 pixels are another image's.
    torch.testing.assert_close(shares[0], torch.tensor([0, 15 / 80, 65 / 80]))
    assert torch.equal(IMAGES, torch.randn(4, 3, 8, 10, generator=torch.Generator().manual_seed(0)))


def test_a_batch_has_one_of_both() -> None:
    rng = np.random.default_rng(0)
    kinds = []
    for _ in range(200):
        images, shares = mix(rng, IMAGES, LABELS, 3, (0.2, 1.0))
        torch.testing.assert_close(shares.sum(dim=1), torch.ones(4))
        # A cut image holds pixels of its own or of its partner only.
        kinds.append(bool(((images == IMAGES) | (images == IMAGES.roll(1, 0))).all()))
    assert abs(sum(kinds) / 200 - 0.5) < 4 * math.sqrt(0.25 / 200)
    assert mix(rng, IMAGES, LABELS, 3, (0.0, 0.0)) == (IMAGES, LABELS)
    for alphas, is_cut in (((0.2, 0.0), False), ((0.0, 1.0), True)):
        images, _ = mix(np.random.default_rng(3), IMAGES, LABELS, 3, alphas)
        assert bool(((images == IMAGES) | (images == IMAGES.roll(1, 0))).all()) is is_cut


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


PICTURE = make_picture(1, (13, 9))
PIXELS = np.array(PICTURE).astype(np.float64)
SQUARE = make_picture(2, (9, 9))
TURNED = np.rot90(np.array(SQUARE).astype(np.float64))


def apply(name: str, strength: float, image: Image.Image = PICTURE) -> np.ndarray:
    return np.array(OPERATIONS[name][0](image, strength)).astype(np.float64)


def test_directions_and_maps_of_values() -> None:
    """Pillow's operations are called the right way round."""
    assert np.array_equal(apply("translate_x", 3.2)[:, 3:], PIXELS[:, :-3])
    assert np.array_equal(apply("translate_y", -4.9)[:-4], PIXELS[4:])
    assert np.array_equal(apply("shear_x", 0.0), PIXELS) and np.array_equal(apply("rotate", 90.0, SQUARE), TURNED)
    assert np.abs(apply("brightness", -0.5) - 0.5 * PIXELS).max() <= 1.0
    assert np.array_equal(apply("posterize", 3.0), PIXELS // 32 * 32)
    assert np.array_equal(apply("solarize", 85.0), np.where(PIXELS < 85.0, PIXELS, 255 - PIXELS))


def test_the_space_is_the_published_one() -> None:
    # Ranges of TrivialAugmentWide: shears 0.99, translations 32 pixels, rotation 135 degrees, enhancements 0.99.
    ranges = {name: None if steps is None else (steps[0], steps[-1]) for name, (_, steps, _) in OPERATIONS.items()}
    assert ranges == {
        "identity": None, "shear_x": (0, 0.99), "shear_y": (0, 0.99), "translate_x": (0, 32), "translate_y": (0, 32),
        "rotate": (0, 135), "brightness": (0, 0.99), "color": (0, 0.99), "contrast": (0, 0.99),
        "sharpness": (0, 0.99), "posterize": (8, 2), "solarize": (255, 0), "autocontrast": None, "equalize": None,
    }  # fmt: skip
    for name, (_, steps, _) in OPERATIONS.items():
        if steps is not None and name != "posterize":
            assert len(steps) == 31 and np.allclose(np.diff(steps), (steps[-1] - steps[0]) / 30)
    posterize = OPERATIONS["posterize"][1]
    assert posterize is not None
    # 8 less the nearest whole number of fifths.
    assert posterize.tolist() == [8] * 3 + [7] * 5 + [6] * 5 + [5] * 5 + [4] * 5 + [3] * 5 + [2] * 3
    signed = {name for name, (_, _, is_signed) in OPERATIONS.items() if is_signed}
    assert signed == {*list(ranges)[1:10]}


def test_draws_are_uniform() -> None:
    rng = np.random.default_rng(0)
    draws = [draw_operation(rng) for _ in range(14_000)]
    counts = Counter(name for name, _ in draws)
    assert set(counts) == set(OPERATIONS)
    # 1000 of each, with a standard deviation of 30.
    assert all(abs(count - 1000) < 135 for count in counts.values())
    rotations = [strength for name, strength in draws if name == "rotate"]
    assert len({abs(strength) for strength in rotations}) == 31
    assert abs(sum(strength < 0 for strength in rotations) / len(rotations) - 0.5) < 0.08
    assert all(strength >= 0 for name, strength in draws if name in ("posterize", "solarize"))
