"""Pictures of routings: of grids, of meshes, in notebooks."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread
from torch import nn

import smoe
from smoe import views
from smoe._notebook import NUM_DISTINCT, expert_colours, html_table, project
from smoe.nn import GraphMoE, SpatialMoE2d
from smoe.regression._scores import ScoreTable
from smoe.views import plot_routing
from smoe_paper.baselines.layers import ConvGate

RNG = np.random.default_rng(0)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    drawn: list[Figure] = []
    monkeypatch.setattr(views, "save_picture", lambda figure, path: drawn.append(figure))
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


def test_nodes_are_drawn_where_they_lie(figures: list[Figure]) -> None:
    choices, coords = np.array([[0, 1, 2, 1]]), np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 2.0], [4.0, 2.0]])
    latitude, longitude = coords[:, 1].reshape(2, 2), coords[:, 0].reshape(2, 2)
    plot_routing(choices, "unused.png", num_experts=3, coords=torch.from_numpy(coords))
    plot_routing(choices.reshape(1, 2, 2), "unused.png", num_experts=3, coords={"lat": latitude, "lon": longitude})
    for figure in figures:
        (image,) = figure.axes[0].images
        colours = np.rint(255 * np.asarray(image.get_array()))
        height, width = colours.shape[:2]
        # The first node is below on the left, and the third above it.
        for row, column, expert in ((0.75, 0.1, 0), (0.75, 0.9, 1), (0.25, 0.1, 2), (0.25, 0.9, 1)):
            np.testing.assert_array_equal(colours[int(row * height), int(column * width)], expert_colours(3)[expert])
        assert figure.axes[0].get_title() == "the expert of each pixel, from above"


def test_a_map_has_the_coordinates_of_its_rows_and_columns(tmp_path: Path) -> None:
    layer = SpatialMoE2d.from_experts(1, 3, 2, spatial_shape=(6, 8))
    north_to_south = {"latitude": np.linspace(60.0, 50.0, 6), "longitude": torch.arange(8) * 2.0}
    figure = smoe.plot_routing(layer, tmp_path / "map.png", coords=north_to_south)
    axes = figure.axes[0]
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("latitude", "longitude")
    # The first row of the data, the northernmost, is drawn at the top, below the coast of Norway.
    assert [text.get_text() for text in axes.get_yticklabels()] == ["50°N", "55°N", "60°N"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0°", "5°E", "10°E"]
    # Each stands at its coordinate, halfway between the edges of the first and the last pixel.
    assert axes.get_xticks() == pytest.approx([480 * (value / 2 + 0.5) / 8 - 0.5 for value in (0, 5, 10)])
    (image,) = axes.images
    assert np.asarray(image.get_array()).shape[1] >= 480
    assert (tmp_path / "map.png").stat().st_size > 5_000


def test_a_coarser_gate_of_a_model_is_stretched_over_the_same_area() -> None:
    net = nn.Sequential(
        SpatialMoE2d.from_experts(1, 3, 2, spatial_shape=(6, 8)),
        SpatialMoE2d.from_experts(2, 4, 1, spatial_shape=(3, 4)),
    )
    figure = plot_routing(net, coords={"y": np.arange(6.0), "x": np.arange(8.0)})
    fine, coarse = (axes for axes in figure.axes if axes.images)
    assert np.asarray(coarse.images[0].get_array()).shape == (3, 4, 3)
    # A coordinate is at the same place of both pictures, though no pixel of the coarse one has it.
    shares = [
        {
            text.get_text(): (place + 0.5) / axes.images[0].get_size()[1]
            for place, text in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
        }
        for axes in (fine, coarse)
    ]
    assert all(found["2"] == pytest.approx(2.5 / 8) for found in shares)
    with pytest.raises(
        ValueError, match=r"coords y \(5,\) and x \(8,\) do not fit the pixels of the gates, 6 x 8, 3 x 4"
    ):
        plot_routing(net, coords={"y": np.arange(5.0), "x": np.arange(8.0)})
    with pytest.raises(ValueError, match="must name rows and columns, two coordinates, got time, y, x"):
        plot_routing(net, coords={"time": 0, "y": np.arange(6.0), "x": np.arange(8.0)})


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


def test_a_body_in_space_is_seen_from_two_sides() -> None:
    corners = np.array([[1.0, 1.0, 1.0], [1.0, -1.0, -1.0], [-1.0, 1.0, -1.0], [-1.0, -1.0, 1.0]])
    figure = plot_routing(GraphMoE.from_experts(1, 2, 1, num_nodes=4), coords=corners)
    assert len(figure.axes) == 2 and figure.axes[0].get_title() == "the expert of each pixel, front and back"


def test_areas_on_a_map_of_the_globe_are_true() -> None:
    x, y = project(np.linspace(-180, 180, 361)[None, :], np.array([[30.0], [31.0]]))
    drawn = np.ptp(x, axis=1).mean() * (y[1, 0] - y[0, 0])
    # The ellipse from -1 to 1 has the area pi, the zone its share of the sphere's.
    assert drawn == pytest.approx(np.pi / 2 * np.diff(np.sin(np.deg2rad([30.0, 31.0])))[0], rel=1e-4)


def pictures(page: str) -> list[np.ndarray]:
    found = re.findall(r"base64,([^\"]+)", page)
    return [np.rint(255 * imread(io.BytesIO(base64.b64decode(one)))[..., :3]).astype(np.uint8) for one in found]


def test_a_routing_map_is_a_picture_of_its_experts() -> None:
    layer = smoe.SpatialMoE2d(1, 1, num_candidates=3, spatial_shape=(5, 7))
    routing = layer.routing()
    (shown,) = pictures(routing._repr_html_())
    np.testing.assert_array_equal(shown, expert_colours(3)[routing.indices[0].numpy()])
    assert all(f"expert {number}: " in routing._repr_html_() for number in range(3))
    assert "SpatialMoE2d(" in layer._repr_html_() and len(pictures(layer._repr_html_())) == 1
    # A slot for each choice, of which four are shown.
    assert len(pictures(smoe.SpatialMoE2d(1, 6, spatial_shape=(5, 7))._repr_html_())) == 4
    assert pictures(smoe.SpatialMoE1d(1, 1, num_candidates=2, spatial_shape=(9,))._repr_html_())[0].shape == (1, 9, 3)


def test_a_plot_has_a_legend_where_experts_have_colours_of_their_own() -> None:
    figure = smoe.SpatialMoE2d(1, 1, num_candidates=2, spatial_shape=(5, 7)).routing().plot(title="two")
    legend, bars = figure.subfigs[0].axes[0].get_legend(), figure.subfigs[0].axes[1].patches
    assert [text.get_text() for text in legend.get_texts()] == ["expert 0", "expert 1"]
    assert {tuple(np.rint(255 * np.array(bar.get_facecolor()[:3])).astype(int)) for bar in bars} == {
        (0, 114, 178), (230, 159, 0),
    }  # fmt: skip
    # A notebook shows it without pyplot, too.
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert smoe.SpatialMoE2d(1, 4, spatial_shape=(5, 7)).plot().subfigs[0].axes[0].get_legend() is None


def test_a_volume_shows_a_slice_of_each_slot() -> None:
    page = smoe.SpatialMoE3d(1, 2, spatial_shape=(6, 4, 5))._repr_html_()
    assert page.count("<img") == 2 and "slot 1 of 2, slice 4 of 6" in page


def test_tables_of_plans_descriptions_and_scores() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 1, 5, padding=2))
    plan = smoe.plan_conversion(net, example_input=torch.zeros(1, 1, 6, 6))
    assert "<td>0</td><td>2 of 4 experts</td><td>(6, 6)</td>" in plan._repr_html_() and "stays" in plan._repr_html_()
    layer = smoe.SpatialMoE2d(1, 1, num_candidates=2, spatial_shape=(6, 6))
    page = smoe.describe(layer)._repr_html_()
    assert "<td>the model itself</td>" in page and "without data nothing can be said" in page
    assert page.count("1 of 2") == 1
    assert "no SMoE layers" in smoe.describe(net)._repr_html_()
    errors = {"model": (0.5,), "<b>zero</b>": (1.0,)}
    page = ScoreTable(("t",), ("K",), 3, errors, errors, errors, notes=("a note",))._repr_html_()
    assert '<tr style="font-weight:bold"><td>model</td><td>0.5</td>' in page and "<b>" not in page and "a note" in page


def test_colours_differ() -> None:
    assert len({tuple(colour) for colour in expert_colours(60).tolist()}) == 60
    assert expert_colours(3).shape == (3, 3) and NUM_DISTINCT == 12
    assert "&lt;i&gt;" in html_table(("a",), [("<i>",)])
