from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from smoe.losses import latitude_weights
from smoe.views import _globe, draw_globe_routing, similarity_colours

LATITUDE, LONGITUDE = np.array([-60.0, 0.0, 60.0]), np.array([0.0, 90.0, 180.0, 270.0])
LAND = np.array([[0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    drawn: list[Figure] = []
    monkeypatch.setattr(_globe, "save_picture", lambda figure, path: drawn.append(figure))
    return drawn


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(lambda item: hasattr(item, "get_text")) if text.get_text()]  # type: ignore[attr-defined]


def test_pixels_with_the_same_experts_have_the_same_colour() -> None:
    # Two sorts of pixels, and one pixel that shares one expert with the first sort.
    chosen = np.stack([np.where(LAND, 0, 2), np.where(LAND, 1, 3)]).astype(int)
    chosen[:, 0, 0] = (0, 3)
    colours = similarity_colours(chosen, 5, latitude_weights(LATITUDE)[:, None])
    assert colours.shape == (3, 4, 3) and colours.min() >= 0 and colours.max() <= 1
    land, sea, mixed = colours[1, 0], colours[2, 3], colours[0, 0]
    assert np.allclose(colours[LAND == 1], land)
    sea_pixels = LAND == 0
    sea_pixels[0, 0] = False
    assert np.allclose(colours[sea_pixels], sea)
    assert np.abs(land - sea).max() > 0.3
    # Nearer to both than they are to each other.
    apart = np.linalg.norm(land - sea)
    assert np.linalg.norm(mixed - land) < apart and np.linalg.norm(mixed - sea) < apart


def test_routing_that_is_the_same_everywhere_is_grey() -> None:
    assert np.allclose(similarity_colours(np.zeros((1, 3, 4), dtype=int), 2), 0.5)


@pytest.mark.parametrize("num_experts", [2, 40])
def test_routing_picture_says_who_is_in_use(figures: list[Figure], num_experts: int) -> None:
    rng = np.random.default_rng(0)
    chosen = rng.random((num_experts, 3, 4)).argsort(0)[: num_experts // 2]
    draw_globe_routing(
        chosen, chosen[0], num_experts, LAND, LATITUDE, LONGITUDE, "unused.png", title="gate of 38 layers"
    )
    shown = texts(figures[0])
    assert "gate of 38 layers" in shown
    num_used, num_first = len(np.unique(chosen)), len(np.unique(chosen[0]))
    assert f"use of each expert ({num_used} of {num_experts} in use)" in shown
    assert f"first choice: {num_first} of {num_experts} experts" in shown
    # The bars are sorted: they have ranks, from 1, which are no numbers of experts.
    assert {"rank of the expert, most land first", "rank of the expert, most used first"} <= set(shown)
    use = next(axes for axes in figures[0].axes if axes.get_xlabel().endswith("most used first"))
    assert use.get_xlim() == (0.5, num_experts + 0.5)
