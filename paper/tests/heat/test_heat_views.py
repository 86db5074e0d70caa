from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from smoe_paper.heat import pictures as views
from smoe_paper.heat.pictures import draw_routing, largest_deviation

STENCILS = np.stack([np.full((3, 3), value) for value in (0.1, 0.2, 0.3)])
REGION_MAP = np.arange(35).reshape(5, 7) % 3


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    drawn: list[Figure] = []
    monkeypatch.setattr(views, "save_picture", lambda figure, path: drawn.append(figure))
    return drawn


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(lambda item: hasattr(item, "get_text")) if text.get_text()]  # type: ignore[attr-defined]


def test_picture_shows_matched_experts(figures: list[Figure]) -> None:
    # Expert 2 serves region 0, expert 0 region 1, expert 1 region 2; expert 2 has one weight off by 0.05.
    experts = STENCILS[[1, 2, 0]].copy()
    experts[2, 0, 0] += 0.05
    draw_routing(REGION_MAP, STENCILS, np.array([2, 0, 1])[REGION_MAP], experts, "unused.png")
    shown = texts(figures[0])
    for title in ("expert 2 → region 0", "expert 0 → region 1", "expert 1 → region 2", "region 0", "0.1500"):
        assert title in shown
    assert any("agreement 100 % (wrong: 0 of 35 pixels)" in text and "stencil 5.0e-02" in text for text in shown)


def test_equal_routing_draws_equal_maps(figures: list[Figure]) -> None:
    draw_routing(REGION_MAP, STENCILS, np.array([2, 0, 1])[REGION_MAP], STENCILS[[1, 2, 0]], "unused.png")
    images = [image for axes in figures[0].axes for image in axes.images]
    truth, learned = (
        image.to_rgba(np.asarray(image.get_array()), bytes=True)
        for image in images
        if np.asarray(image.get_array()).shape == REGION_MAP.shape
    )
    np.testing.assert_array_equal(truth, learned)


def test_one_wrong_pixel_is_never_called_100_percent(figures: list[Figure]) -> None:
    region_map = np.arange(400 * 300).reshape(400, 300) % 3
    routing_map = region_map.copy()
    routing_map[0, 0] = 1
    draw_routing(region_map, STENCILS, routing_map, STENCILS, "unused.png")
    assert any("agreement 99.99 % (wrong: 1 of 120000 pixels)" in text for text in texts(figures[0]))


def test_unused_experts_are_named(figures: list[Figure]) -> None:
    experts = np.zeros((6, 5, 5))
    draw_routing(REGION_MAP, STENCILS, REGION_MAP + 1, experts, "unused.png")
    shown = texts(figures[0])
    assert [text for text in shown if "unused" in text] == ["expert 0, unused", "expert 4, unused", "expert 5, unused"]


def test_experts_of_one_region_have_different_colours(figures: list[Figure]) -> None:
    routing_map = REGION_MAP.copy()
    routing_map[0, 0] = 3
    draw_routing(REGION_MAP, STENCILS, routing_map, np.zeros((4, 3, 3)), "unused.png")
    learned = next(image for axes in figures[0].axes[4:] for image in axes.images)
    colours = learned.to_rgba(np.arange(4), bytes=True)
    assert len({tuple(colour) for colour in colours}) == 4


def test_deviation_surrounds_the_smaller_kernel_with_zeros() -> None:
    stencils = np.full((1, 3, 3), 0.5)
    experts = np.zeros((2, 5, 5))
    experts[0, 1:4, 1:4] = 0.5
    experts[1] = 9.0
    assert largest_deviation(stencils, experts, np.array([0, -1])) == 0.0
    experts[0, 0, 4] = -0.25
    assert largest_deviation(stencils, experts, np.array([0, -1])) == 0.25
    # A 1x1 expert cannot hold the neighbours: 0.5 is missing there.
    assert largest_deviation(stencils, np.full((1, 1, 1), 0.4), np.array([0])) == 0.5


@pytest.mark.parametrize(("num_experts", "kernel_size"), [(3, 3), (6, 5), (1, 1), (17, 3)])
def test_picture_is_written(tmp_path: Path, num_experts: int, kernel_size: int) -> None:
    rng = np.random.default_rng(0)
    routing_map = rng.integers(0, num_experts, size=REGION_MAP.shape)
    experts = rng.normal(size=(num_experts, kernel_size, kernel_size))
    path = tmp_path / "folder" / "routing.png"
    draw_routing(REGION_MAP, STENCILS, routing_map, experts, path)
    assert imread(path).shape[0] > 500
    assert list(path.parent.iterdir()) == [path]


def test_pyplot_stays_unloaded() -> None:
    # In a process of its own, since another test may have loaded it.
    program = "import sys, smoe.views, smoe_paper.heat.pictures; sys.exit('matplotlib.pyplot' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
