from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread
from torch import nn

from smoe.nn import ConvGate, SpatialMoE2d
from smoe.views import plot_routing, routing

RNG = np.random.default_rng(0)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    drawn: list[Figure] = []
    monkeypatch.setattr(routing, "save_picture", lambda figure, path: drawn.append(figure))
    return drawn


@pytest.mark.parametrize(
    ("pixels", "shapes"),
    [((7,), [(1, 7, 3)]), ((4, 5), [(4, 5, 3)]), ((4, 5, 6), [(5, 6, 3), (4, 6, 3), (4, 5, 3)])],
)
def test_lines_maps_and_volumes(figures: list[Figure], pixels: tuple[int, ...], shapes: list[tuple[int, ...]]) -> None:
    plot_routing(RNG.integers(0, 6, (2, *pixels)), "unused.png", num_experts=6, title="a layer")
    assert figures[0].get_suptitle() == "a layer"
    images = [np.asarray(image.get_array()).shape for axes in figures[0].axes for image in axes.images]
    assert images == shapes
    assert figures[0].axes[-1].get_title().startswith("use of each expert")


def test_nodes_of_a_mesh_are_points(figures: list[Figure]) -> None:
    coords = RNG.normal(size=(20, 2))
    plot_routing(RNG.integers(0, 3, (1, 20)), "unused.png", num_experts=3, coords=torch.from_numpy(coords))
    (points,) = figures[0].axes[0].collections
    np.testing.assert_allclose(np.asarray(points.get_offsets()), coords)


def test_each_gate_of_a_model_is_drawn(tmp_path: Path) -> None:
    net = nn.Sequential(SpatialMoE2d(1, 3, 2, spatial_shape=(6, 8)), SpatialMoE2d(2, 4, 1, spatial_shape=(6, 8)))
    plot_routing(net, tmp_path / "both.png")
    plot_routing(net[0], tmp_path / "one.png")
    assert imread(tmp_path / "both.png").shape[0] > 1.5 * imread(tmp_path / "one.png").shape[0]


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="SpatialMoE2d holds no gate whose choices are the same for all inputs"):
        plot_routing(SpatialMoE2d(1, 3, 1, gate=ConvGate(1, 3, 1)), "unused.png")
    line = np.zeros((1, 5), dtype=int)
    with pytest.raises(ValueError, match="num_experts is needed"):
        plot_routing(line, "unused.png")
    with pytest.raises(ValueError, match=r"two numbers for each pixel, \(5, 2\), got \(4, 2\)"):
        plot_routing(line, "unused.png", num_experts=2, coords=np.zeros((4, 2)))
    with pytest.raises(ValueError, match=r"pixels of shape \(1, 1, 1, 2\) cannot be drawn without coords"):
        plot_routing(np.zeros((1, 1, 1, 1, 2), dtype=int), "unused.png", num_experts=2)
