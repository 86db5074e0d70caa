"""TrivialAugment's operations against their definition on arrays, and its draws against the published space."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from image_folders import make_picture
from smoe_paper.imagenet.augment import OPERATIONS, draw_operation, trivial_augment

PICTURE = make_picture(1, (13, 9))
PIXELS = np.array(PICTURE).astype(np.float64)


def apply(name: str, strength: float, image: Image.Image = PICTURE) -> np.ndarray:
    return np.array(OPERATIONS[name][0](image, strength)).astype(np.float64)


def sample(x: float, y: float) -> np.ndarray:
    """The pixel at a place between centres, bilinear; black if the place is outside the image."""
    height, width = PIXELS.shape[:2]
    if not (0 <= x < width and 0 <= y < height):
        return np.zeros(3)
    x, y = x - 0.5, y - 0.5
    left, top = int(np.floor(x)), int(np.floor(y))
    total = np.zeros(3)
    for row, row_share in ((top, top + 1 - y), (top + 1, y - top)):
        for column, share in ((left, left + 1 - x), (left + 1, x - left)):
            total += row_share * share * PIXELS[min(max(row, 0), height - 1), min(max(column, 0), width - 1)]
    return total


def moved(back: Callable[[float, float], tuple[float, float]]) -> np.ndarray:
    """Each new pixel from where `back` leads its centre."""
    height, width = PIXELS.shape[:2]
    return np.array([[sample(*back(x + 0.5, y + 0.5)) for x in range(width)] for y in range(height)])


@pytest.mark.parametrize("strength", [0.33, -0.99])
def test_shears(strength: float) -> None:
    assert np.abs(apply("shear_x", strength) - moved(lambda x, y: (x + strength * y, y))).max() <= 1.0
    assert np.abs(apply("shear_y", strength) - moved(lambda x, y: (x, y + strength * x))).max() <= 1.0


@pytest.mark.parametrize("strength", [3.2, -4.9, 0.9])
def test_translations_are_by_whole_pixels(strength: float) -> None:
    whole = int(strength)
    assert np.array_equal(apply("translate_x", strength), moved(lambda x, y: (x - whole, y)))
    assert np.array_equal(apply("translate_y", strength), moved(lambda x, y: (x, y - whole)))


def test_rotation_is_counterclockwise_about_the_centre() -> None:
    angle = 40.0
    cosine, sine = np.cos(np.radians(angle)), np.sin(np.radians(angle))

    def back(x: float, y: float) -> tuple[float, float]:
        x, y = x - 6.5, y - 4.5
        return cosine * x - sine * y + 6.5, sine * x + cosine * y + 4.5

    ours, expected = apply("rotate", angle), moved(back)
    # A place on the very border may be in or out by a rounding.
    is_same = np.abs(ours - expected).max(axis=2) <= 1.0
    assert is_same.mean() > 0.97


def blended(other: np.ndarray, strength: float) -> np.ndarray:
    """The image and another one, with the weight 1 + strength on the image, clipped."""
    return np.clip(other + (1.0 + strength) * (PIXELS - other), 0, 255)


@pytest.mark.parametrize("strength", [0.5, -0.5, 0.99, -0.99])
def test_enhancements_blend(strength: float) -> None:
    grey = np.round(PIXELS @ [0.299, 0.587, 0.114])
    assert np.abs(apply("brightness", strength) - blended(np.zeros_like(PIXELS), strength)).max() <= 1.0
    assert np.abs(apply("color", strength) - blended(np.repeat(grey[..., None], 3, axis=2), strength)).max() <= 2.0
    mean = np.full_like(PIXELS, round(grey.mean()))
    assert np.abs(apply("contrast", strength) - blended(mean, strength)).max() <= 2.0
    # Blurred by the kernel 1 1 1 / 1 5 1 / 1 1 1 over 13, but for the border.
    blurred = PIXELS.copy()
    shifted = [np.roll(PIXELS, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    blurred[1:-1, 1:-1] = ((sum(shifted) + 4 * PIXELS) / 13.0)[1:-1, 1:-1]
    assert np.abs(apply("sharpness", strength) - blended(blurred, strength)).max() <= 1.5


def test_maps_of_values() -> None:
    for bits in range(2, 9):
        assert np.array_equal(apply("posterize", float(bits)), PIXELS // 2 ** (8 - bits) * 2 ** (8 - bits))
    for threshold in (255.0, 127.5, 85.0, 0.0):
        assert np.array_equal(apply("solarize", threshold), np.where(threshold > PIXELS, PIXELS, 255 - PIXELS))
    low, high = PIXELS.min(axis=(0, 1)), PIXELS.max(axis=(0, 1))
    assert np.abs(apply("autocontrast", 0.0) - (PIXELS - low) / (high - low) * 255).max() <= 1.0
    assert np.array_equal(apply("identity", 0.0), PIXELS)
    # Equalised: the share of pixels below a value is about the value.
    wide = make_picture(0, (400, 300)).convert("L").convert("RGB")
    values = apply("equalize", 0.0, wide)[..., 0]
    for value in (30, 60, 90, 120):
        assert abs((values <= value).mean() - value / 255) < 0.02


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


def test_an_image_is_changed_by_what_is_drawn() -> None:
    for seed in range(30):
        name, strength = draw_operation(np.random.default_rng(seed))
        changed = trivial_augment(np.random.default_rng(seed), PICTURE)
        assert np.array_equal(np.array(changed), apply(name, strength))
        assert changed.size == PICTURE.size and changed.mode == "RGB"
