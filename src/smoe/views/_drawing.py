"""What pictures share: places of pixels and nodes, bars of expert use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from smoe._files import write_atomically
from smoe.diagnostics._choices import as_array

# Okabe and Ito's colours, which colour-blind readers can distinguish.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def save_picture(figure: Figure, path: str | Path) -> None:
    """Write a figure, whole or not at all; missing folders are made."""
    path = Path(path)
    canvas = FigureCanvasAgg(figure)
    formats = canvas.get_supported_filetypes()
    ending = path.suffix[1:].lower()
    if ending not in formats:
        raise ValueError(f"a picture must end in one of .{', .'.join(sorted(formats))}, got {path}")
    write_atomically(path, lambda file: figure.savefig(file, format=ending, dpi=160))


def draw_expert_use(axes: Axes, use: np.ndarray, *, of: str = "pixels", colours: np.ndarray | None = None) -> None:
    """Draw the share of the pixels that each expert serves, `smoe.diagnostics.expert_use`, the most used one first.

    `of` names the whole, such as `globe` if pixels are weighted by their area. With colours of the experts, `(X, 3)`
    from 0 to 1, the bars are named.
    """
    order = np.argsort(-use, kind="stable")
    ordered, ranks = use[order] * 100, np.arange(1, len(use) + 1)
    axes.bar(ranks, ordered, 1.0 if colours is None else 0.8, color=COLOURS[2] if colours is None else colours[order])
    # Each pixel has as many experts, so the mean is the use if all were used alike.
    axes.axhline(ordered.mean(), color="0.35", linestyle=(0, (4, 3)), linewidth=1.2, label="if all were used alike")
    axes.set_xlim(0.5, len(ordered) + 0.5)
    axes.set_ylim(0, 103)
    if colours is None:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("rank of the expert, most used first")
    else:
        axes.set_xticks(ranks, [str(expert) for expert in order])
        axes.set_xlabel("expert, most used first")
    axes.set_ylabel(f"of the {of}, in %")
    axes.set_title(f"use of each expert ({int((use > 0).sum())} of {len(use)} in use)", fontsize=10.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right")


# Rows: directions to the right, up, and towards the viewer.
VIEWS = {
    "front": np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]),
    "back": np.array([[0.0, -1.0, 0.0], [0.0, 0.0, 1.0], [-1.0, 0.0, 0.0]]),
    "above": np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
}


def views_of(places: np.ndarray) -> tuple[str, ...]:
    """Sides from which the whole of some places `(N, 3)` is seen: what is flat from above, all else from two sides."""
    width, depth, height = np.ptp(places, axis=0)
    return ("above",) if 2 * height <= min(width, depth) else ("front", "back")


def as_space(coordinates: np.ndarray | Tensor) -> np.ndarray:
    """Coordinates `(N, 2)` or `(N, 3)` as `(N, 3)`; a plane lies at height 0."""
    places = np.asarray(as_array(coordinates), dtype=float)
    if places.ndim != 2 or places.shape[1] not in (2, 3):
        raise ValueError(f"coordinates must be (N, 2) or (N, 3), got shape {places.shape}")
    return np.pad(places, ((0, 0), (0, 3 - places.shape[1])))


def draw_side(
    axes: Axes, places: np.ndarray, colours: np.ndarray, view: np.ndarray, triangles: np.ndarray | None = None
) -> None:
    """Draw a mesh in parallel projection; what is nearer to the viewer covers what is farther away."""
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


# Steps of a coordinate that differ by less than this share are one step, as files with rounded numbers have it.
_ROUNDING = 0.02


@dataclass(frozen=True)
class PixelPlaces:
    """Places of pixels in a picture."""

    names: tuple[str, str] | None  # names of the vertical and the horizontal coordinate
    rows: np.ndarray  # vertical coordinate of each row `(H,)`, or of each pixel
    columns: np.ndarray  # horizontal coordinate of each column `(W,)`, or of each pixel
    is_regular: bool  # whether rows and columns have coordinates of their own

    views: ClassVar[tuple[str, ...]] = ("above",)

    def draw(self, axes: Axes, colours: np.ndarray) -> None:
        if not self.is_regular:
            count = self.rows.size
            axes.scatter(
                self.columns.ravel(), self.rows.ravel(), c=colours.reshape(-1, 3), s=max(1.0, 4000.0 / count),
                linewidths=0,
            )  # fmt: skip
            axes.set_aspect("equal", adjustable="datalim")
        elif colours.shape[:2] == (len(self.rows), len(self.columns)) and not all(
            _has_one_step(axis) for axis in (self.rows, self.columns)
        ):
            axes.pcolormesh(self.columns, self.rows, colours, shading="nearest")
        else:
            bottom, top = _edges(self.rows)
            left, right = _edges(self.columns)
            axes.imshow(colours, interpolation="nearest", origin="lower", extent=(left, right, bottom, top))
            # Rows that descend, as in files from north to south, are still drawn upwards.
            axes.set_xlim(min(left, right), max(left, right))
            axes.set_ylim(min(bottom, top), max(bottom, top))
            is_in_degrees = np.abs(self.rows).max() <= 90.0 and np.abs(self.columns).max() <= 360.0
            axes.set_aspect("equal" if is_in_degrees else "auto")
        if self.names is None:
            axes.set_xticks([])
            axes.set_yticks([])
        else:
            axes.set_ylabel(self.names[0], fontsize=9)
            axes.set_xlabel(self.names[1], fontsize=9)
            axes.tick_params(labelsize=8)


@dataclass(frozen=True)
class NodePlaces:
    """Places of the nodes of a mesh in space."""

    places: np.ndarray  # places, `(N, 3)`
    triangles: np.ndarray | None  # corners of its triangles, `(T, 3)`; None to draw the nodes as points

    @property
    def views(self) -> tuple[str, ...]:
        """Sides from which the whole mesh is seen."""
        return views_of(self.places)

    def draw(self, axes: Axes, colours: np.ndarray, view: str) -> None:
        draw_side(axes, self.places, colours.reshape(-1, 3), VIEWS[view], self.triangles)


def read_places(
    coords: np.ndarray | Tensor | Mapping[str, Any],
    shapes: Sequence[tuple[int, ...]],
    triangles: np.ndarray | Tensor | None = None,
) -> PixelPlaces | NodePlaces:
    """Read coordinates, and refuse those that do not fit the pixels of all gates."""
    if isinstance(coords, Mapping):
        return _read_named(coords, shapes)
    values = as_array(coords)
    for shape in shapes:
        if values.shape not in ((*shape, 2), (*shape, 3)):
            raise ValueError(f"coords must hold two or three numbers for each pixel, {(*shape, 2)}, got {values.shape}")
    if values.shape[-1] == 3 or triangles is not None:
        flat = as_space(values.reshape(-1, values.shape[-1]))
        return NodePlaces(flat, None if triangles is None else as_array(triangles))
    flat = values.reshape(-1, 2)
    return PixelPlaces(None, flat[:, 1], flat[:, 0], is_regular=False)


def _read_named(coords: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]) -> PixelPlaces:
    if len(coords) != 2:
        raise ValueError(f"coords must name rows and columns, two coordinates, got {', '.join(map(str, coords))}")
    first, second = map(str, coords)
    rows, columns = (np.asarray(values, np.float64) for values in coords.values())
    is_regular = rows.ndim == 1 and columns.ndim == 1
    shape = (len(rows), len(columns)) if is_regular else rows.shape
    fits = shape in shapes if is_regular else rows.shape == columns.shape and all(each == shape for each in shapes)
    if not fits or min(shape) < 2:
        pixels = ", ".join(" x ".join(map(str, each)) for each in dict.fromkeys(shapes))
        raise ValueError(
            f"coords {first} {rows.shape} and {second} {columns.shape} do not fit the pixels of the gates, {pixels}"
        )
    return PixelPlaces((first, second), rows, columns, is_regular)


def _has_one_step(axis: np.ndarray) -> bool:
    steps = np.diff(axis)
    return bool(np.abs(steps - steps.mean()).max() <= _ROUNDING * abs(steps.mean()))


def _edges(axis: np.ndarray) -> tuple[float, float]:
    """Outer edges of the first and the last pixel."""
    half = 0.5 * (axis[-1] - axis[0]) / (len(axis) - 1)
    return float(axis[0] - half), float(axis[-1] + half)
