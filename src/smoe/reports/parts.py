"""Parts of a report: where pixels lie, errors at each, examples. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

PlaceKind = Literal["grid", "globe", "mesh"]


@dataclass(frozen=True)
class Axis:
    """A coordinate of the rows or of the columns of a map."""

    name: str  # such as `latitude`
    values: np.ndarray  # coordinate of each row or column, `(H,)` or `(W,)`; or of each pixel, `(H, W)`
    units: str = ""  # such as `degrees_north`


@dataclass(frozen=True)
class Places:
    """Where the pixels of a run lie."""

    kind: PlaceKind  # a line, map or volume; a map that goes round the globe; nodes in space
    shape: tuple[int, ...]  # grid of the pixels, of one to three dimensions
    rows: Axis | None = None  # coordinate of the rows of a map; None if rows are only numbered
    columns: Axis | None = None  # coordinate of the columns of a map
    goes_up: bool = False  # whether the first row of a map is at the bottom
    is_geographic: bool = False  # whether the coordinates are latitude and longitude in degrees
    coordinates: np.ndarray | None = None  # coordinates of the nodes of a mesh, `(P, 2)` or `(P, 3)`
    triangles: np.ndarray | None = None  # corners of the triangles of a mesh, `(T, 3)`, for pictures outside of a page

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
class ErrorMap:
    """An error at each pixel, over the samples of a split."""

    name: str  # name of the target and of the error, such as `Z500, RMSE`
    units: str
    values: np.ndarray  # error at each pixel, `(P,)` or in the shape of the grid; NaN where there is none
    plain: np.ndarray | None = None  # the same error of a plain prediction, such as that of a net without experts
    plain_name: str = ""
    baseline: np.ndarray | None = None  # the same error of the best simple prediction, such as persistence
    baseline_name: str = ""


@dataclass(frozen=True)
class Example:
    """One sample."""

    name: str  # such as its time
    units: str  # units of truth and prediction
    input: tuple[str, str, np.ndarray]  # name and units of an input, and its values
    truth: np.ndarray  # truth at each pixel, in the shape of the grid; NaN where there is none
    prediction: np.ndarray
