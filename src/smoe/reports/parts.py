"""Parts of a report: where pixels lie, errors at each, classes. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

PlaceKind = Literal["grid", "globe", "mesh"]


@dataclass(frozen=True)
class Axis:
    """A coordinate of the rows or of the columns of a map.

    Attributes:
        name: Name of the coordinate, such as `latitude`.
        values: Coordinate of each row or column, `(H,)` or `(W,)`; or of each pixel, `(H, W)`.
        units: Units, such as `degrees_north`; empty if there are none.
    """

    name: str
    values: np.ndarray
    units: str = ""


@dataclass(frozen=True)
class Places:
    """Where the pixels of a run lie.

    Attributes:
        kind: `grid`, a line, a map or a volume; `globe`, a map that goes round the globe; `mesh`, nodes in space.
        shape: Grid of the pixels, of one to three dimensions.
        rows: Coordinate of the rows of a map; None if rows are only numbered.
        columns: Coordinate of the columns of a map.
        goes_up: Whether the first row of a map is at the bottom.
        is_geographic: Whether the coordinates are latitude and longitude in degrees.
        coordinates: Coordinates of the nodes of a mesh, `(P, 2)` or `(P, 3)`.
        triangles: Corners of the triangles of a mesh, `(T, 3)`; None to draw its nodes as points.
    """

    kind: PlaceKind
    shape: tuple[int, ...]
    rows: Axis | None = None
    columns: Axis | None = None
    goes_up: bool = False
    is_geographic: bool = False
    coordinates: np.ndarray | None = None
    triangles: np.ndarray | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.shape) <= 3:
            raise ValueError(f"pixels must have 1 to 3 dimensions, got a grid of {self.shape}")
        if self.kind == "globe" and (self.rows is None or self.columns is None):
            raise ValueError("a globe needs the latitudes of its rows and the longitudes of its columns")
        if self.kind == "mesh" and (self.coordinates is None or len(self.coordinates) != self.num_pixels):
            number = "none" if self.coordinates is None else len(self.coordinates)
            raise ValueError(f"a mesh needs the coordinates of its {self.num_pixels} nodes, got {number}")

    @classmethod
    def globe(cls, latitude: Sequence[float] | np.ndarray, longitude: Sequence[float] | np.ndarray) -> Places:
        """Return the places of a global map."""
        rows, columns = np.asarray(latitude, np.float64), np.asarray(longitude, np.float64)
        return cls(
            "globe",
            (len(rows), len(columns)),
            rows=Axis("latitude", rows, "degrees_north"),
            columns=Axis("longitude", columns, "degrees_east"),
            goes_up=bool(rows[0] < rows[-1]),
            is_geographic=True,
        )

    @property
    def num_pixels(self) -> int:
        """P, the number of pixels."""
        return int(np.prod(self.shape))

    @property
    def areas(self) -> np.ndarray | None:
        """Area of each pixel of a map of latitudes and longitudes, `(H, W)`; None for other pixels."""
        if not self.is_geographic or self.rows is None or self.rows.values.ndim != 1 or len(self.shape) != 2:
            return None
        cosines = np.maximum(np.cos(np.deg2rad(self.rows.values)), 0.0)
        return np.broadcast_to(cosines[:, None], self.shape)

    def on_grid(self, shape: tuple[int, ...]) -> Places | None:
        """Return the places of a coarser or finer map of the same area."""
        if shape == self.shape:
            return self
        if len(shape) != len(self.shape) or self.kind == "mesh":
            return None
        if len(shape) != 2:
            return Places("grid", shape)
        rows = _resample(self.rows, self.shape[0], shape[0])
        columns = _resample(self.columns, self.shape[1], shape[1])
        if (rows is None) != (self.rows is None) or (columns is None) != (self.columns is None):
            return Places("grid", shape, goes_up=self.goes_up)
        return replace(self, shape=shape, rows=rows, columns=columns)


def _resample(axis: Axis | None, size: int, new_size: int) -> Axis | None:
    """The coordinates of the centres of as many equal parts of an axis; None for coordinates of each pixel."""
    if axis is None or axis.values.ndim != 1 or size < 2:
        return None
    places = (np.arange(new_size) + 0.5) * size / new_size - 0.5
    inner = np.interp(places, np.arange(size), axis.values)
    # np.interp is constant beyond the ends.
    steps = np.diff(axis.values)
    inner = np.where(places < 0, axis.values[0] + places * steps[0], inner)
    inner = np.where(places > size - 1, axis.values[-1] + (places - size + 1) * steps[-1], inner)
    return Axis(axis.name, inner, axis.units)


@dataclass(frozen=True)
class Classes:
    """Classes of images.

    Attributes:
        names: Names of the classes, N of them.
        images: Mean image of each class, as brightness from 0 to 1, `(N, H, W)`.
        confusion: Number of images of each class (rows) that were taken for each class (columns), `(N, N)`; None if it
            was not measured.
    """

    names: tuple[str, ...]
    images: np.ndarray
    confusion: np.ndarray | None = None


@dataclass(frozen=True)
class ErrorMap:
    """An error at each pixel, over the samples of a split.

    Attributes:
        name: Name of the target and of the error, such as `Z500, RMSE`.
        units: Units of the error.
        values: Error at each pixel, `(P,)` or in the shape of the grid; NaN where there is none.
        plain: The same error of a plain prediction, such as that of a net without experts; None if there is none.
        plain_name: Name of the plain prediction.
        baseline: The same error of the best simple prediction, such as persistence; None if there is none.
        baseline_name: Its name.
    """

    name: str
    units: str
    values: np.ndarray
    plain: np.ndarray | None = None
    plain_name: str = ""
    baseline: np.ndarray | None = None
    baseline_name: str = ""


@dataclass(frozen=True)
class Example:
    """One sample.

    Attributes:
        name: Such as its time.
        units: Units of truth and prediction.
        input: Name and units of an input, and its values.
        truth: Truth at each pixel, in the shape of the grid; NaN where there is none.
        prediction: What is predicted.
    """

    name: str
    units: str
    input: tuple[str, str, np.ndarray]
    truth: np.ndarray
    prediction: np.ndarray
