from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from smoe_paper.heat import pictures as views
from smoe_paper.heat.pictures import draw_routing

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
    # Expert 2 serves region 0, expert 0 region 1, expert 1 region 2; experts 3 and 4 nothing. One pixel is wrong.
    routing_map = np.array([2, 0, 1])[REGION_MAP]
    routing_map[0, 0] = 0
    experts = np.concatenate([STENCILS[[1, 2, 0]], np.zeros((2, 3, 3))])
    experts[2, 0, 0] += 0.05
    draw_routing(REGION_MAP, STENCILS, routing_map, experts, "unused.png")
    shown = texts(figures[0])
    for title in ("expert 2: region 0", "expert 0: region 1", "expert 1: region 2", "region 0", "0.150"):
        assert title in shown
    assert [text for text in shown if "unused" in text] == ["expert 3: unused", "expert 4: unused"]
    assert "learned, wrong at 1 of 35 pixels" in shown


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
