"""Pictures of meshes."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from smoe.paper.heat_mesh.data import domains
from smoe.paper.heat_mesh.views import draw_grid_regions, draw_surface_regions
from smoe.views.mesh_routing import VIEWS, draw_side, plot_mesh_routing


def size_of(path) -> int:
    assert path.read_bytes().startswith(b"\x89PNG")
    return path.stat().st_size


@pytest.mark.parametrize("has_triangles", [True, False])
def test_a_sphere_from_two_sides(tmp_path, has_triangles):
    sphere = domains.icosphere(2)
    triangles = sphere.triangles if has_triangles else None
    routing = np.random.default_rng(0).integers(0, 4, size=(1, 162))
    plot_mesh_routing(routing, sphere.coordinates, tmp_path / "a.png", num_experts=4, triangles=triangles)
    assert size_of(tmp_path / "a.png") > 5000


def test_a_plane_from_above(tmp_path):
    places = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    routing = np.array([[0, 1, 1, 0]])
    triangles = np.array([[0, 1, 2], [1, 2, 3]])
    plot_mesh_routing(routing, places, tmp_path / "a.png", num_experts=2, triangles=triangles)
    assert size_of(tmp_path / "a.png") > 2000


def test_only_the_near_side_is_drawn():
    sphere = domains.icosphere(2)
    assert sphere.triangles is not None
    for view in ("front", "back"):
        axes = Figure().add_subplot()
        draw_side(axes, sphere.coordinates, np.zeros((162, 3)), VIEWS[view], sphere.triangles)
        drawn = len(axes.collections[0].get_paths())
        assert 0.4 * len(sphere.triangles) < drawn < 0.6 * len(sphere.triangles)


def test_true_and_learned_regions(tmp_path):
    sphere = domains.icosphere(2)
    regions = np.arange(162) % 3
    draw_surface_regions(regions, regions, sphere, tmp_path / "sphere.png")
    draw_grid_regions(np.arange(64) % 3, np.arange(64) % 3, tmp_path / "line.png")
    draw_grid_regions(np.arange(64).reshape(4, 4, 4) % 3, np.arange(64).reshape(4, 4, 4) % 3, tmp_path / "volume.png")
    for name in ("sphere", "line", "volume"):
        assert size_of(tmp_path / f"{name}.png") > 2000


def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match=r"coordinates must be \(N, 2\) or \(N, 3\), got shape \(4,\)"):
        plot_mesh_routing(np.zeros((1, 4), dtype=int), np.zeros(4), tmp_path / "a.png", num_experts=1)
    with pytest.raises(ValueError, match="4 colours for 5 nodes"):
        plot_mesh_routing(np.zeros((1, 4), dtype=int), np.zeros((5, 2)), tmp_path / "a.png", num_experts=1)
