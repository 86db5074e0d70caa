"""Interpolation between grids by a sparse matrix: bilinear between rows and columns, else by inverse distance."""

from __future__ import annotations

from typing import Any

import numpy as np

from smoe.errors import DataError, naming_extras
from smoe.gridded._grids import HorizontalGrid
from smoe.meshes._mesh import on_sphere

_NEIGHBOURS = 4
_EARTH_RADIUS_KM = 6371.0
# A chord of this length, about 6 m on the earth, is none: the pixels coincide.
_SAME = 1e-6
# Fields that are interpolated at once, in float64.
_BLOCK = 64


class Regridding:
    """Fields of one grid on another.

    Between two grids of latitudes and longitudes, a pixel is interpolated along rows and along columns, and missing
    values spread to the pixels that they have weight in. The target may reach beyond the outermost pixels of the source
    by one step, as it does beyond means of its own blocks; the nearest values hold there (`beyond` has the steps).
    Between others, a pixel is the mean of its four nearest ones, weighted by the inverse of the squared distance;
    missing values do not count, but where the nearest pixel has none, the result is missing: a coast stays where it is.
    """

    def __init__(self, source: HorizontalGrid, target: HorizontalGrid) -> None:
        if source.kind == target.kind == "rotated" and not source.has_pole_of(target):
            raise DataError(f"{source.difference(target)}: regrid one of them first, for example by xesmf or cdo")
        self.target, self.beyond = target, 0.0
        self._nearest: np.ndarray | None = None
        self._weights: Any
        with naming_extras("regridding"):
            import scipy.sparse
        if source.kind == target.kind and source.kind in ("latitude-longitude", "rotated"):
            self._weights = scipy.sparse.kron(
                self._linear(source.rows, target.rows, len(source.rows), source), self._columns(source, target), "csr"
            )
        else:
            self._weights = self._by_distance(source, target)

    def __call__(self, fields: np.ndarray) -> np.ndarray:
        """Fields `(..., H, W)` to `(..., H', W')`, float32, computed in float64."""
        flat = fields.reshape(-1, self._weights.shape[1])
        output = np.empty((len(flat), self._weights.shape[0]), np.float32)
        for first in range(0, len(flat), _BLOCK):
            values = flat[first : first + _BLOCK].T.astype(np.float64)
            is_missing = np.isnan(values)
            if self._nearest is None or not is_missing.any():
                found = self._weights @ values
            else:
                with np.errstate(invalid="ignore"):
                    found = (self._weights @ np.where(is_missing, 0.0, values)) / (self._weights @ ~is_missing)
                found[is_missing[self._nearest]] = np.nan
            output[first : first + _BLOCK] = found.T
        return output.reshape(*fields.shape[:-2], *self.target.shape)

    def _columns(self, source: HorizontalGrid, target: HorizontalGrid) -> Any:
        columns = source.columns
        wanted = columns[0] + np.mod(target.columns - columns[0] + 1e-6, 360.0) - 1e-6
        if source.closes_circle:
            return self._linear(np.append(columns, columns[0] + 360.0), wanted, len(columns), source)
        # West of the first column by less than a step, not east of the last one by nearly a turn.
        is_west = wanted - columns[-1] > 0.5 * (360.0 - (columns[-1] - columns[0]))
        return self._linear(columns, np.where(is_west, wanted - 360.0, wanted), len(columns), source)

    def _linear(self, axis: np.ndarray, points: np.ndarray, size: int, source: HorizontalGrid) -> Any:
        """Weights of the coordinates of an axis, `(points, size)`; the last coordinate of a circle is the first."""
        import scipy.sparse
        from scipy.interpolate import BSpline

        if len(axis) < 2:
            raise DataError(f"a grid with {len(axis)} rows or columns cannot be interpolated")
        beyond = max(axis[0] - points.min(), points.max() - axis[-1]) / float(np.median(np.diff(axis)))
        if beyond > 1.0 + 1e-6:
            raise DataError(
                f"{self.target.describe()} is not inside of {source.describe()}: cut the target, or give inputs that "
                "cover it"
            )
        self.beyond = max(self.beyond, float(beyond) if beyond > 1e-6 else 0.0)
        # Hat functions; their columns are folded where the axis is a circle.
        knots = np.concatenate([axis[:1], axis, axis[-1:]])
        hats = BSpline.design_matrix(np.clip(points, axis[0], axis[-1]), knots, 1).tocoo()
        weights = scipy.sparse.csr_matrix((hats.data, (hats.row, hats.col % size)), (len(points), size))
        # A neighbour without weight does not count, even if it is NaN.
        weights.eliminate_zeros()
        return weights

    def _by_distance(self, source: HorizontalGrid, target: HorizontalGrid) -> Any:
        import scipy.sparse
        from scipy.spatial import KDTree

        from_points, to_places = on_sphere(*source.pixel_coordinates()), target.pixel_coordinates()
        count = min(_NEIGHBOURS, source.shape[0] * source.shape[1])
        tree = KDTree(from_points.reshape(-1, 3))
        found: Any = tree.query(on_sphere(*to_places).reshape(-1, 3), k=np.arange(1, count + 1))  # type: ignore[arg-type]
        distances, numbers = found
        farthest = int(np.argmax(distances[:, 0]))
        # Half of the longest diagonal is the farthest that a point inside of the grid can be from a pixel.
        if distances[farthest, 0] > _widest_diagonal(from_points):
            latitude, longitude = (each.ravel()[farthest] for each in to_places)
            raise DataError(
                f"{target.describe()} is not inside of {source.describe()}: its pixel at latitude {latitude:g}, "
                f"longitude {longitude:g} is {_EARTH_RADIUS_KM * distances[farthest, 0]:.0f} km from the nearest "
                "pixel; cut the target, or give inputs that cover it"
            )
        weights = 1.0 / np.maximum(distances, _SAME) ** 2
        weights[distances[:, 0] < _SAME, 1:] = 0.0
        weights /= weights.sum(axis=1, keepdims=True)
        self._nearest = numbers[:, 0]
        rows = np.repeat(np.arange(len(numbers)), count)
        return scipy.sparse.csr_matrix((weights.ravel(), (rows, numbers.ravel())), (len(numbers), tree.n))


def _widest_diagonal(points: np.ndarray) -> float:
    """The longest step along rows and the longest along columns, as one step along both; folds of a grid left out."""
    steps = [np.linalg.norm(np.diff(points, axis=axis), axis=-1) for axis in (0, 1) if points.shape[axis] > 1]
    return float(np.sqrt(sum(np.quantile(each, 0.99) ** 2 for each in steps)))
