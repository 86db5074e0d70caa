"""Interpolation between grids: bilinear between latitudes and longitudes, by inverse distance between any others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from smoe.errors import DataError
from smoe.gridded._grids import HorizontalGrid

_BLOCK = 256


def on_sphere(latitude: np.ndarray, longitude: np.ndarray) -> np.ndarray:
    """Points on the unit sphere, `(N, 3)`, from degrees of any shape."""
    phi, lam = np.deg2rad(latitude).ravel(), np.deg2rad(longitude).ravel()
    return np.stack([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)], axis=-1)


def nearest_points(points: np.ndarray, wanted: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The nearest points of each wanted one, nearest first; of several at one distance, the one with the least number.

    Points are sorted by height, and a wanted point is compared with those in a band around its own height. No point
    outside of a band is nearer than the edge of the band: where the last one found is farther than that, the band is
    doubled.

    Args:
        points: Points on the unit sphere, `(S, 3)`, at least `count`.
        wanted: Points on the unit sphere, `(T, 3)`.
        count: Number of points to find for each.

    Returns:
        Numbers of the points, `(T, count)`, and the lengths of the chords to them, `(T, count)`.
    """
    order = np.argsort(points[:, 2], kind="stable")
    ordered = points[order]
    heights = ordered[:, 2]
    numbers = np.empty((len(wanted), count), np.int64)
    squares = np.empty((len(wanted), count))
    first_margin = 2.0 * (heights[-1] - heights[0] + 1e-3) / np.sqrt(len(points))
    by_height = np.argsort(wanted[:, 2])
    for first in range(0, len(wanted), _BLOCK):
        rows, margin = by_height[first : first + _BLOCK], first_margin
        while len(rows):
            of_rows = wanted[rows]
            low = int(np.searchsorted(heights, of_rows[:, 2].min() - margin))
            high = int(np.searchsorted(heights, of_rows[:, 2].max() + margin, side="right"))
            is_all = low == 0 and high == len(points)
            if high - low < count and not is_all:
                margin *= 2.0
                continue
            # In the order of their numbers, so that of equal distances the least number comes first.
            band = np.sort(order[low:high])
            apart = np.maximum(2.0 - 2.0 * (of_rows @ points[band].T), 0.0)
            places = np.argpartition(apart, count - 1, axis=1)[:, :count] if count < apart.shape[1] else None
            places = np.arange(apart.shape[1])[None].repeat(len(rows), 0) if places is None else np.sort(places, axis=1)
            found = np.take_along_axis(apart, places, axis=1)
            by_distance = np.argsort(found, axis=1, kind="stable")
            numbers[rows] = band[np.take_along_axis(places, by_distance, axis=1)]
            squares[rows] = np.take_along_axis(found, by_distance, axis=1)
            is_done = is_all | (squares[rows, -1] <= margin**2)
            rows, margin = rows[~is_done], margin * 2.0
    return numbers, np.sqrt(squares)


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


Interpolation = Callable[[np.ndarray], np.ndarray]
"""Turns fields `(..., H, W)` of one grid into fields `(..., H', W')` of another."""


def make_regridding(source: HorizontalGrid, target: HorizontalGrid) -> Interpolation:
    """The interpolation between two grids: bilinear between rows and columns, else by inverse distance.

    Raises:
        DataError: If a grid has neither, or the target reaches beyond the source.
    """
    if source.kind == target.kind == "rotated" and not source.has_pole_of(target):
        raise DataError(f"{source.difference(target)}: regrid one of them first, for example by xesmf or cdo")
    if source.kind == target.kind and source.kind in ("latitude-longitude", "rotated"):
        return Regridding(source, target)
    return InverseDistance(source, target)


class Regridding:
    """Weights of the interpolation from one grid to another.

    A pixel is interpolated along rows, then along columns. Missing values spread to the pixels that they have weight
    in. The target grid may reach beyond the source grid by half a step; there the nearest values hold.

    Args:
        source: Grid of the fields; its longitudes may close the circle.
        target: Grid to interpolate to.

    Raises:
        DataError: If a grid has no rows and columns of latitudes and longitudes, or the target reaches further.
    """

    def __init__(self, source: HorizontalGrid, target: HorizontalGrid) -> None:
        for grid in (source, target):
            if grid.kind not in ("latitude-longitude", "rotated") or source.kind != target.kind:
                raise DataError(
                    f"regridding works between grids of latitudes and longitudes, got {source.describe()} and "
                    f"{target.describe()}: regrid one of them first, for example by xesmf or cdo"
                )
        self.target = target
        self._rows = _weights(source.rows, target.rows, f"{target.describe()} is not inside of {source.describe()}")
        columns, self._wraps = source.columns, source.closes_circle
        wanted = columns[0] + np.mod(target.columns - columns[0] + 1e-6, 360.0) - 1e-6
        if self._wraps:
            columns = np.append(columns, columns[0] + 360.0)
        else:
            # West of the first column by less than half a step, not east of the last one by nearly a turn.
            wanted = np.where(wanted - columns[-1] > 0.5 * (360.0 - (columns[-1] - columns[0])), wanted - 360.0, wanted)
        self._columns = _weights(columns, wanted, f"{target.describe()} is not inside of {source.describe()}")

    def __call__(self, fields: np.ndarray) -> np.ndarray:
        """Fields `(..., H, W)` to `(..., H', W')`, float32, computed in float64."""
        values = fields.astype(np.float64)
        low, share = self._rows
        values = _mix(values[..., low, :], values[..., low + 1, :], share[:, None])
        if self._wraps:
            values = np.concatenate([values, values[..., :1]], axis=-1)
        low, share = self._columns
        return _mix(values[..., low], values[..., low + 1], share).astype(np.float32)


def _weights(axis: np.ndarray, points: np.ndarray, complaint: str) -> tuple[np.ndarray, np.ndarray]:
    if len(axis) < 2:
        raise DataError(f"a grid with {len(axis)} rows or columns cannot be interpolated")
    margin = 0.5 * float(np.median(np.diff(axis))) + 1e-6
    if points.min() < axis[0] - margin or points.max() > axis[-1] + margin:
        raise DataError(f"{complaint}: cut the target, or give inputs that cover it")
    low = np.clip(np.searchsorted(axis, points, side="right") - 1, 0, len(axis) - 2)
    return low, np.clip((points - axis[low]) / (axis[low + 1] - axis[low]), 0.0, 1.0)


def _mix(low: np.ndarray, high: np.ndarray, share: np.ndarray) -> np.ndarray:
    # Where a point coincides with a neighbour, the other one does not count, even if it is NaN.
    mixed = low * (1.0 - share) + high * share
    return np.where(share == 0.0, low, np.where(share == 1.0, high, mixed))
