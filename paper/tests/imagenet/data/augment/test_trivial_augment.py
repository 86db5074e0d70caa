"""TrivialAugment's operations, and its draws against the published space."""

from __future__ import annotations

from collections import Counter

import numpy as np
from PIL import Image

from image_folders import make_picture
from smoe_paper.imagenet.augment import OPERATIONS, draw_operation

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
