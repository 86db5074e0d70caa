"""Pictures of meshes."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from smoe.views._drawing import VIEWS, draw_nodes, draw_side, views_of
from smoe_paper.heat_mesh import data as domains


@pytest.mark.parametrize(("view", "sign"), [("front", 1), ("back", -1)])
def test_the_near_side_of_a_sphere_covers_the_far_side(view, sign):
    sphere = domains.icosphere(2)
    assert sphere.triangles is not None
    assert views_of(sphere.coordinates) == ("front", "back")
    depth = sign * sphere.coordinates[:, 0]
    colours = np.where(depth[:, None] > 0, 1.0, np.zeros((162, 3)))
    axes = Figure().add_subplot()
    draw_side(axes, sphere.coordinates, colours, VIEWS[view], sphere.triangles)
    shades = np.asarray(axes.collections[0].get_facecolor())[:, 0]
    assert shades[: len(shades) // 3].max() == 0.0 and shades[-len(shades) // 3 :].min() == 1.0
    axes = Figure().add_subplot()
    draw_side(axes, sphere.coordinates, colours, VIEWS[view])
    assert (depth > 0.1).sum() <= len(np.asarray(axes.collections[0].get_offsets())) <= (depth > -0.1).sum()


def test_an_open_surface_that_is_nearly_flat_is_seen_from_above_as_a_whole():
    x, y = (part.flatten() for part in np.meshgrid(np.linspace(0, 1, 5), np.linspace(0, 1, 5)))
    places = np.stack([x, y, 0.2 * np.sin(6 * x)], axis=1)
    assert views_of(places) == ("above",)
    corners = np.array([[0, 1, 5], [1, 6, 5], [18, 19, 23], [19, 24, 23]])
    surface, points = Figure().subplots(1, 2)
    draw_side(surface, places, np.zeros((25, 3)), VIEWS["above"], corners)
    draw_side(points, places, np.zeros((25, 3)), VIEWS["above"])
    assert len(np.asarray(surface.collections[0].get_facecolor())) == 4
    assert len(np.asarray(points.collections[0].get_offsets())) == 25


def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match=r"coordinates must be \(N, 2\) or \(N, 3\), got shape \(4,\)"):
        draw_nodes({"": np.zeros((4, 3))}, np.zeros(4), tmp_path / "a.png")
    with pytest.raises(ValueError, match="4 colours for 5 nodes"):
        draw_nodes({"": np.zeros((4, 3))}, np.zeros((5, 2)), tmp_path / "a.png")
