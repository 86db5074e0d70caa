"""Interpolation between any two grids whose pixels have latitudes and longitudes."""

from __future__ import annotations

import numpy as np

from smoe.errors import DataError
from smoe.gridded.horizontal_grid import HorizontalGrid
from smoe.gridded.nearest_points import nearest_points, on_sphere

_NEIGHBOURS = 4
_EARTH_RADIUS_KM = 6371.0
# A chord of this length, about 6 m on the earth, is none: the pixels coincide.
_SAME = 1e-6


class InverseDistance:
    """Means of the four nearest pixels, weighted by the inverse of their squared distance.

    Missing values do not count; where the nearest pixel has none, the result is missing: a coast stays where it is.

    Args:
        source: Grid of the fields: curvilinear, or of latitudes and longitudes.
        target: Grid to interpolate to, of one of these kinds.

    Raises:
        DataError: If a grid has no latitudes and longitudes, or a target pixel lies outside of the source grid.
    """

    def __init__(self, source: HorizontalGrid, target: HorizontalGrid) -> None:
        from_points, to_points = on_sphere(*pixel_coordinates(source)), on_sphere(*pixel_coordinates(target))
        self.target = target
        count = min(_NEIGHBOURS, len(from_points))
        self._numbers, distances = nearest_points(from_points, to_points, count)
        # Half of the longest diagonal is the farthest that a point inside of the grid can be from a pixel.
        reach = _widest_diagonal(from_points.reshape(*source.shape, 3))
        farthest = int(np.argmax(distances[:, 0]))
        kilometres = _EARTH_RADIUS_KM * distances[farthest, 0]
        if distances[farthest, 0] > reach:
            latitude, longitude = (each.ravel()[farthest] for each in pixel_coordinates(target))
            raise DataError(
                f"{target.describe()} is not inside of {source.describe()}: its pixel at latitude {latitude:g}, "
                f"longitude {longitude:g} is {kilometres:.0f} km from the nearest pixel; "
                "cut the target, or give inputs that cover it"
            )
        weights = 1.0 / np.maximum(distances, _SAME) ** 2
        weights[distances[:, 0] < _SAME, 1:] = 0.0
        self._weights = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)

    def __call__(self, fields: np.ndarray) -> np.ndarray:
        """Fields `(..., H, W)` to `(..., H', W')`, float32."""
        flat = fields.reshape(-1, fields.shape[-2] * fields.shape[-1])
        output = np.empty((len(flat), len(self._numbers)), np.float32)
        for values, row in zip(flat, output, strict=True):
            near = values[self._numbers]
            is_there = ~np.isnan(near)
            if is_there.all():
                row[:] = (near * self._weights).sum(axis=1)
                continue
            weights = self._weights * is_there
            with np.errstate(invalid="ignore", divide="ignore"):
                mean = np.where(is_there, near, 0.0) * weights
                row[:] = np.where(is_there[:, 0], mean.sum(axis=1) / weights.sum(axis=1), np.nan)
        return output.reshape(*fields.shape[:-2], *self.target.shape)


def pixel_coordinates(grid: HorizontalGrid) -> tuple[np.ndarray, np.ndarray]:
    """Latitude and longitude of each pixel in degrees, two `(H, W)`.

    Raises:
        DataError: If the grid has none.
    """
    if grid.kind == "curvilinear":
        return grid.rows, grid.columns
    if grid.kind == "latitude-longitude":
        latitude, longitude = np.meshgrid(grid.rows, grid.columns, indexing="ij")
        return latitude, longitude
    raise DataError(
        f"{grid.describe()} has no latitude and longitude of each pixel, which regridding needs: add them as "
        "two-dimensional coordinates, or regrid first, for example by xesmf or cdo"
    )


def _widest_diagonal(points: np.ndarray) -> float:
    """The longest step along rows and the longest along columns, as one step along both; folds of a grid left out."""
    squares = 0.0
    for axis in (0, 1):
        if points.shape[axis] > 1:
            steps = np.linalg.norm(np.diff(points, axis=axis), axis=-1)
            squares += float(np.quantile(steps, 0.99)) ** 2
    return float(np.sqrt(squares))
