from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread
from torch import nn

import smoe
from smoe.nn import GraphMoE, SpatialMoE2d
from smoe.views import _routing, plot_routing
from smoe_paper.baselines.gates import ConvGate

RNG = np.random.default_rng(0)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    drawn: list[Figure] = []
    monkeypatch.setattr(_routing, "save_picture", lambda figure, path: drawn.append(figure))
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


def test_a_map_has_the_coordinates_of_its_rows_and_columns(tmp_path: Path) -> None:
    layer = SpatialMoE2d.from_experts(1, 3, 2, spatial_shape=(6, 8))
    north_to_south = {"latitude": np.linspace(60.0, 50.0, 6), "longitude": torch.arange(8) * 2.0}
    figure = smoe.plot_routing(layer, tmp_path / "map.png", coords=north_to_south)
    axes = figure.axes[0]
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("latitude", "longitude")
    # The first row of the data, the northernmost, is drawn at the top: half a step beyond 60 degrees.
    assert axes.get_ylim() == (49.0, 61.0) and axes.get_xlim() == (-1.0, 15.0)
    (image,) = axes.images
    assert image.get_extent() == [-1.0, 15.0, 61.0, 49.0] and image.origin == "lower"
    assert (tmp_path / "map.png").stat().st_size > 5_000


def test_rows_with_several_steps_and_pixels_with_two_coordinates() -> None:
    choices = RNG.integers(0, 3, (1, 3, 4))
    rows, columns = np.array([0.0, 1.0, 5.0]), np.arange(4.0)
    figure = plot_routing(choices, num_experts=3, coords={"y": rows, "x": columns})
    (mesh,) = figure.axes[0].collections
    assert np.asarray(mesh.get_array()).shape == (3, 4, 3)
    latitude, longitude = np.meshgrid(rows, columns, indexing="ij")
    figure = plot_routing(choices, num_experts=3, coords={"lat": latitude, "lon": longitude})
    (points,) = figure.axes[0].collections
    np.testing.assert_array_equal(points.get_offsets(), np.stack([longitude.ravel(), latitude.ravel()], axis=1))


def test_a_coarser_gate_of_a_model_is_stretched_over_the_same_area() -> None:
    net = nn.Sequential(
        SpatialMoE2d.from_experts(1, 3, 2, spatial_shape=(6, 8)),
        SpatialMoE2d.from_experts(2, 4, 1, spatial_shape=(3, 4)),
    )
    figure = plot_routing(net, coords={"y": np.arange(6.0), "x": np.arange(8.0)})
    fine, coarse = (axes.images[0] for axes in figure.axes if axes.images)
    assert fine.get_extent() == coarse.get_extent() and np.asarray(coarse.get_array()).shape == (3, 4, 3)
    with pytest.raises(
        ValueError, match=r"coords y \(5,\) and x \(8,\) do not fit the pixels of the gates, 6 x 8, 3 x 4"
    ):
        plot_routing(net, coords={"y": np.arange(5.0), "x": np.arange(8.0)})
    with pytest.raises(ValueError, match="must name rows and columns, two coordinates, got time, y, x"):
        plot_routing(net, coords={"time": 0, "y": np.arange(6.0), "x": np.arange(8.0)})


def test_each_gate_of_a_model_is_drawn(tmp_path: Path) -> None:
    net = nn.Sequential(
        SpatialMoE2d.from_experts(1, 3, 2, spatial_shape=(6, 8)),
        SpatialMoE2d.from_experts(2, 4, 1, spatial_shape=(6, 8)),
    )
    plot_routing(net, tmp_path / "both.png")
    plot_routing(net[0], tmp_path / "one.png")
    assert imread(tmp_path / "both.png").shape[0] > 1.5 * imread(tmp_path / "one.png").shape[0]


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="SpatialMoE2d holds no gate whose choices are the same for all inputs"):
        plot_routing(SpatialMoE2d.from_experts(1, 3, 1, gate=ConvGate(1, 3, 1)), "unused.png")
    line = np.zeros((1, 5), dtype=int)
    with pytest.raises(ValueError, match="num_experts is needed"):
        plot_routing(line, "unused.png")
    with pytest.raises(ValueError, match=r"two or three numbers for each pixel, \(5, 2\), got \(4, 2\)"):
        plot_routing(line, "unused.png", num_experts=2, coords=np.zeros((4, 2)))
    with pytest.raises(ValueError, match=r"pixels of shape \(1, 1, 1, 2\) cannot be drawn without coords"):
        plot_routing(np.zeros((1, 1, 1, 1, 2), dtype=int), "unused.png", num_experts=2)


def test_nodes_in_space_are_seen_from_two_sides_and_those_of_a_plane_from_above() -> None:
    corners = np.array([[1.0, 1.0, 1.0], [1.0, -1.0, -1.0], [-1.0, 1.0, -1.0], [-1.0, -1.0, 1.0]])
    triangles = np.array([[0, 1, 2], [0, 3, 1], [0, 2, 3], [1, 3, 2]])
    layer = GraphMoE.from_experts(1, 2, 1, num_nodes=4)
    headings = [axes.get_title() for axes in plot_routing(layer, coords=corners, triangles=triangles).axes]
    assert headings[:2] == ["the expert of each pixel, front", "the expert of each pixel, back"]
    flat = plot_routing(layer, coords=corners[:, :2], triangles=triangles[:1])
    assert len(flat.axes) == 2 and flat.axes[0].get_title() == "the expert of each pixel, above"
    with pytest.raises(ValueError, match="triangles need coords"):
        plot_routing(layer, triangles=triangles)
