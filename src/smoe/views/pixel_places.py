"""Where pixels lie: coordinates of rows and columns, or two numbers for each pixel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from matplotlib.axes import Axes
from torch import Tensor

from smoe.diagnostics.choices import as_array
from smoe.views.mesh_routing import VIEWS, as_space, draw_side, views_of

# Steps of a coordinate that differ by less than this share are one step, as files with rounded numbers have it.
_ROUNDING = 0.02


@dataclass(frozen=True)
class PixelPlaces:
    """Places of pixels in a picture.

    Attributes:
        names: Names of the vertical and the horizontal coordinate; empty for points without names.
        rows: Vertical coordinate of each row `(H,)`, or of each pixel.
        columns: Horizontal coordinate of each column `(W,)`, or of each pixel.
        is_regular: Whether rows and columns have coordinates of their own.
    """

    names: tuple[str, str] | None
    rows: np.ndarray
    columns: np.ndarray
    is_regular: bool

    views: ClassVar[tuple[str, ...]] = ("above",)

    def draw(self, axes: Axes, colours: np.ndarray) -> None:
        """Draws pixels with their colours, `(..., 3)`."""
        if not self.is_regular:
            count = self.rows.size
            axes.scatter(
                self.columns.ravel(), self.rows.ravel(), c=colours.reshape(-1, 3), s=max(1.0, 4000.0 / count),
                linewidths=0,
            )  # fmt: skip
            axes.set_aspect("equal", adjustable="datalim")
        elif colours.shape[:2] == (len(self.rows), len(self.columns)) and not self._has_one_step:
            axes.pcolormesh(self.columns, self.rows, colours, shading="nearest")
        else:
            bottom, top = _edges(self.rows)
            left, right = _edges(self.columns)
            axes.imshow(colours, interpolation="nearest", origin="lower", extent=(left, right, bottom, top))
            # Rows that descend, as in files from north to south, are still drawn upwards.
            axes.set_xlim(min(left, right), max(left, right))
            axes.set_ylim(min(bottom, top), max(bottom, top))
            axes.set_aspect("equal" if self._is_in_degrees else "auto")
        if self.names is None:
            axes.set_xticks([])
            axes.set_yticks([])
        else:
            axes.set_ylabel(self.names[0], fontsize=9)
            axes.set_xlabel(self.names[1], fontsize=9)
            axes.tick_params(labelsize=8)

    @property
    def _has_one_step(self) -> bool:
        return all(_has_one_step(axis) for axis in (self.rows, self.columns))

    @property
    def _is_in_degrees(self) -> bool:
        return bool(np.abs(self.rows).max() <= 90.0 and np.abs(self.columns).max() <= 360.0)


@dataclass(frozen=True)
class NodePlaces:
    """Places of the nodes of a mesh in space.

    Attributes:
        places: Places, `(N, 3)`.
        triangles: Corners of its triangles, `(T, 3)`; None to draw the nodes as points.
    """

    places: np.ndarray
    triangles: np.ndarray | None

    @property
    def views(self) -> tuple[str, ...]:
        """Sides from which the whole mesh is seen."""
        return views_of(self.places)

    def draw(self, axes: Axes, colours: np.ndarray, view: str) -> None:
        """Draws nodes with their colours, `(N, 3)`, from one side."""
        draw_side(axes, self.places, colours.reshape(-1, 3), VIEWS[view], self.triangles)


def read_places(
    coords: np.ndarray | Tensor | Mapping[str, Any],
    shapes: Sequence[tuple[int, ...]],
    triangles: np.ndarray | Tensor | None = None,
) -> PixelPlaces | NodePlaces:
    """Checks coordinates against the pixels of all gates.

    Args:
        coords: As `plot_routing` takes them.
        shapes: Pixels of each gate.
        triangles: Corners of triangles.

    Raises:
        ValueError: If they fit no gate, with both shapes.
    """
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
