"""Values on the nodes of a mesh in space: the plane from above, spheres and surfaces from two sides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from torch import Tensor

from smoe.diagnostics.choices import Choices, as_array
from smoe.views.picture import save_picture
from smoe.views.similarity_colours import similarity_colours

# Rows: directions to the right, up, and towards the viewer.
VIEWS = {
    "front": np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]),
    "back": np.array([[0.0, -1.0, 0.0], [0.0, 0.0, 1.0], [-1.0, 0.0, 0.0]]),
    "above": np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
}


def plot_mesh_routing(
    routing: Choices,
    coordinates: np.ndarray | Tensor,
    path: str | Path,
    *,
    num_experts: int,
    triangles: np.ndarray | Tensor | None = None,
    title: str = "",
) -> None:
    """Draws which experts serve which nodes of a mesh; nodes with like colours share experts.

    A mesh that is flat, or nearly so, is seen from above, any other from two sides.

    Args:
        routing: Experts chosen at each node, `(E, N)`.
        coordinates: Places of the nodes, `(N, 2)` or `(N, 3)`.
        path: Picture to write.
        num_experts: X, the number of experts in the bank.
        triangles: Corners of the triangles, `(T, 3)`; without them nodes are drawn as points.
        title: Title of the picture.
    """
    colours = similarity_colours(routing, num_experts)
    draw_nodes({"like colours share experts": colours}, coordinates, path, triangles=triangles, title=title)


def draw_nodes(
    columns: dict[str, np.ndarray],
    coordinates: np.ndarray | Tensor,
    path: str | Path,
    *,
    triangles: np.ndarray | Tensor | None = None,
    title: str = "",
) -> None:
    """Draws colours of nodes side by side, each from the sides that show the whole mesh.

    Args:
        columns: Colours `(N, 3)` by their headings.
        coordinates: Places of the nodes, `(N, 2)` or `(N, 3)`.
        path: Picture to write.
        triangles: Corners of the triangles, `(T, 3)`.
        title: Title of the picture.
    """
    places = as_space(coordinates)
    views = views_of(places)
    corners = None if triangles is None else as_array(triangles)
    figure = Figure(figsize=(3.4 * len(columns) * len(views), 3.9), layout="constrained")
    figure.suptitle(title, fontsize=13, fontweight="bold")
    panels = figure.subplots(1, len(columns) * len(views), squeeze=False)[0]
    for number, (heading, colours) in enumerate(columns.items()):
        for offset, view in enumerate(views):
            axes = panels[number * len(views) + offset]
            draw_side(axes, places, colours, VIEWS[view], corners)
            axes.set_title(f"{heading}, {view}" if len(views) > 1 else heading, fontsize=10.5)
    save_picture(figure, path)


def views_of(places: np.ndarray) -> tuple[str, ...]:
    """Sides from which the whole of some places `(N, 3)` is seen: what is flat from above, all else from two sides."""
    width, depth, height = np.ptp(places, axis=0)
    return ("above",) if 2 * height <= min(width, depth) else ("front", "back")


def as_space(coordinates: np.ndarray | Tensor) -> np.ndarray:
    """Coordinates as `(N, 3)`; a plane lies at height 0.

    Raises:
        ValueError: If they are not `(N, 2)` or `(N, 3)`.
    """
    places = np.asarray(as_array(coordinates), dtype=float)
    if places.ndim != 2 or places.shape[1] not in (2, 3):
        raise ValueError(f"coordinates must be (N, 2) or (N, 3), got shape {places.shape}")
    return np.pad(places, ((0, 0), (0, 3 - places.shape[1])))


def draw_side(
    axes: Axes, places: np.ndarray, colours: np.ndarray, view: np.ndarray, triangles: np.ndarray | None = None
) -> None:
    """Draws a mesh in parallel projection; what is nearer to the viewer covers what is farther away.

    Args:
        axes: Empty axes; their frame is removed.
        places: Places of the nodes, `(N, 3)`.
        colours: Colours of the nodes, `(N, 3)`.
        view: Directions to the right, up and towards the viewer, `(3, 3)`.
        triangles: Corners of the triangles, `(T, 3)`; None for points.
    """
    if len(colours) != len(places):
        raise ValueError(f"there are {len(colours)} colours for {len(places)} nodes")
    right, up, depth = view @ (places - places.mean(axis=0)).T
    flat = np.stack([right, up], axis=1)
    if triangles is None:
        # Points do not cover each other: of a body only the near half is drawn.
        is_near = (depth >= 0.0) | (len(views_of(places)) == 1)
        order = np.flatnonzero(is_near)[np.argsort(depth[is_near])]
        size = max(1.0, 60000.0 / max(1, len(order)))
        axes.scatter(*flat[order].T, c=colours[order], s=size, linewidths=0)
    else:
        order = np.argsort(depth[triangles].mean(axis=1))
        # A triangle has the colour of its middle corner by brightness: means of colours would look like other experts.
        corners = colours[triangles[order]]
        middle = np.argsort(corners.sum(axis=2), axis=1)[:, 1]
        shade = corners[np.arange(len(order)), middle]
        axes.add_collection(
            PolyCollection(list(flat[triangles[order]]), facecolors=shade, edgecolors="face", linewidths=0.2)
        )
        axes.autoscale_view()
    axes.set_aspect("equal")
    axes.set_axis_off()
