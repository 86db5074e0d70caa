"""Any horizontal grid: global or regional, rotated, projected or curvilinear, or the nodes of a mesh in one row."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from smoe.errors import DataError, naming_extras
from smoe.gridded._axes import Axes
from smoe.meshes._mesh import NODES, on_sphere

if TYPE_CHECKING:
    import xarray as xr


GridKind = Literal["latitude-longitude", "rotated", "projected", "curvilinear", "indexed", "mesh"]

# Files keep coordinates in float32 or with the rounding of a regridding program.
_TOLERANCE_STEPS = 0.02


@dataclass(frozen=True)
class HorizontalGrid:
    """Points of a grid in a fixed order: rows from south to north, columns eastwards.

    Rows and columns are coordinates `(H,)` and `(W,)`; latitude and longitude of each pixel `(H, W)` if it is
    curvilinear; degrees of a rotated pole; empty if the grid is indexed; the places of nodes if it is a mesh.
    """

    kind: GridKind
    shape: tuple[int, int]
    rows: np.ndarray = field(repr=False)
    columns: np.ndarray = field(repr=False)
    closes_circle: bool  # whether the first column is the eastern neighbour of the last one
    pole: tuple[float, float] | None = None

    @property
    def hash(self) -> str:
        """Number of the grid, from its coordinates with three decimals of their step."""
        pole = "" if self.pole is None else " {:.3f} {:.3f}".format(*self.pole)
        digest = hashlib.sha256(f"{self.kind} {self.shape}{pole}".encode())
        for values in (self.rows, self.columns):
            if values.size:
                digest.update(np.rint(np.asarray(values, np.float64) * 1000.0).astype(np.int64).tobytes())
        return digest.hexdigest()[:16]

    @property
    def remedy(self) -> str:
        return "regrid them, or move the model by smoe.interpolate_grids"

    def difference(self, other: HorizontalGrid) -> str | None:
        """In which way another grid differs, both described; None if they are the same."""
        reason = None
        if self.kind != other.kind or self.shape != other.shape:
            reason = "they differ in kind or size"
        elif not self.has_pole_of(other):
            reason = f"their rotated poles are at {_place(self.pole)} and {_place(other.pole)}"
        else:
            for name, ours, theirs in (("rows", self.rows, other.rows), ("columns", self.columns, other.columns)):
                distance = _largest_distance(ours, theirs, is_circular=name == "columns" and self.kind != "projected")
                if distance > _TOLERANCE_STEPS * _step(ours):
                    reason = f"their {name} differ by up to {distance:g}"
                    break
        return None if reason is None else f"{self.describe()} against {other.describe()}: {reason}"

    def has_pole_of(self, other: HorizontalGrid) -> bool:
        if self.pole is None or other.pole is None:
            return True
        apart = np.abs(np.subtract(self.pole, other.pole))
        return bool(apart[0] < 1e-3 and min(apart[1], abs(360.0 - apart[1])) < 1e-3)

    def describe(self) -> str:
        """Size and extent, such as `40 x 60 latitude-longitude, rows 35 to 54.5, columns -10 to 19.5`."""
        text = f"{self.shape[0]} x {self.shape[1]} {self.kind}"
        if not self.rows.size:
            return text
        closed = ", all around the globe" if self.closes_circle else ""
        return (
            f"{text}, rows {self.rows.min():g} to {self.rows.max():g}, columns {self.columns.min():g} to "
            f"{self.columns.max():g}{closed}"
        )

    def describe_pixel(self, row: int, column: int) -> str:
        """Where a pixel lies, such as `latitude 45, longitude 7.5`."""
        if self.kind in ("indexed", "mesh"):
            return f"node {column}" if self.kind == "mesh" else f"row {row}, column {column}"
        names = ("row", "column") if self.kind in ("rotated", "projected") else ("latitude", "longitude")
        two = self.rows.ndim == 2
        places = (self.rows[row, column], self.columns[row, column]) if two else (self.rows[row], self.columns[column])
        return f"{names[0]} {places[0]:g}, {names[1]} {places[1]:g}"

    def pixel_coordinates(self) -> tuple[np.ndarray, np.ndarray]:
        """Latitude and longitude of each pixel in degrees, two `(H, W)`."""
        if self.kind == "curvilinear":
            return self.rows, self.columns
        if self.kind != "latitude-longitude":
            raise DataError(
                f"{self.describe()} has no latitude and longitude of each pixel, which regridding needs: add them as "
                "two-dimensional coordinates, or regrid first, for example by xesmf or cdo"
            )
        latitude, longitude = np.meshgrid(self.rows, self.columns, indexing="ij")
        return latitude, longitude

    def area_weights(self) -> np.ndarray | None:
        """Area of each pixel, `(H, W)`, of mean 1; None for a grid that has no latitudes."""
        if self.kind in ("latitude-longitude", "rotated"):
            # A row at a pole has a cosine of 0 but for rounding.
            areas = np.repeat(np.maximum(np.cos(np.deg2rad(self.rows)), 0.0)[:, None], self.shape[1], axis=1)
        elif self.kind == "curvilinear" and min(self.shape) > 1:
            # On the unit sphere, from the vectors between neighbouring pixels.
            points = on_sphere(self.rows, self.columns)
            areas = np.linalg.norm(np.cross(_to_neighbours(points, 0), _to_neighbours(points, 1)), axis=-1)
        else:
            return None
        return areas / areas.mean()


@dataclass(frozen=True)
class Orientation:
    """Position in the file of each row `(H,)` and column `(W,)` of a grid, which has them in a fixed order."""

    row_order: np.ndarray
    column_order: np.ndarray

    def turn(self, fields: np.ndarray) -> np.ndarray:
        """Fields `(..., H, W)` in the order of the file, brought to the order of the grid."""
        if (np.diff(self.row_order) != 1).any():
            fields = fields[..., self.row_order, :]
        return fields[..., self.column_order] if (np.diff(self.column_order) != 1).any() else fields

    def turn_back(self, fields: np.ndarray) -> np.ndarray:
        """Fields `(..., H, W)` in the order of the grid, brought to the order of the file."""
        return fields[..., np.argsort(self.row_order), :][..., np.argsort(self.column_order)]


def read_grid(array: xr.DataArray, axes: Axes, where: str) -> tuple[HorizontalGrid, Orientation]:
    """Reads the grid of a field and the order that its file has; of a row of nodes, the nodes."""
    if NODES in array.coords:
        nodes = array[NODES].attrs["nodes"]
        places = np.ascontiguousarray(nodes.places)
        grid = NodeGrid("mesh", (1, len(places)), places, np.empty(0), False, description=nodes.description)
        return grid, Orientation(np.arange(1), np.arange(len(places)))
    shape = (array.sizes[axes.row], array.sizes[axes.column])
    as_they_are = Orientation(np.arange(shape[0]), np.arange(shape[1]))
    if axes.latitude is not None and array[axes.latitude].ndim == 2:
        assert axes.longitude is not None
        latitude, longitude = (
            np.asarray(array[name].transpose(axes.row, axes.column).values, np.float64)
            for name in (axes.latitude, axes.longitude)
        )
        _check_values(latitude, f"{axes.latitude} of {where}", limit=90.0)
        _check_values(longitude, f"{axes.longitude} of {where}", limit=720.0)
        closes = _pixels_close_circle(longitude)
        return HorizontalGrid("curvilinear", shape, latitude, np.mod(longitude, 360.0), closes), as_they_are
    rows, columns = _coordinate(array, axes.row), _coordinate(array, axes.column)
    if rows is None or columns is None:
        if rows is not None or columns is not None:
            missing = axes.row if rows is None else axes.column
            raise DataError(f"{where} has no coordinate along {missing!r}, but one along the other axis: add it")
        return HorizontalGrid("indexed", shape, np.empty(0), np.empty(0), False), as_they_are
    is_geographic = axes.latitude is not None and axes.longitude is not None
    is_rotated = array[axes.column].attrs.get("standard_name") == "grid_longitude" or axes.column == "rlon"
    kind: GridKind = "latitude-longitude" if is_geographic else "rotated" if is_rotated else "projected"
    _check_values(rows, f"{axes.row} of {where}", limit=90.0 if kind != "projected" else None)
    _check_values(columns, f"{axes.column} of {where}", limit=720.0 if kind != "projected" else None)
    for name, values in ((axes.row, rows), (axes.column, columns)):
        repeated = np.flatnonzero(np.diff(np.sort(values)) == 0.0)
        if len(repeated):
            raise DataError(f"{name} of {where} has the value {np.sort(values)[repeated[0]]:g} twice: drop one of them")
    row_order, column_order, closes = np.argsort(rows, kind="stable"), np.argsort(columns, kind="stable"), False
    columns = columns[column_order]
    if kind != "projected":
        columns, turned, closes = _eastwards(columns, f"{axes.column} of {where}")
        column_order = column_order[turned]
    return HorizontalGrid(kind, shape, rows[row_order], columns, closes), Orientation(row_order, column_order)


def _eastwards(longitude: np.ndarray, where: str) -> tuple[np.ndarray, np.ndarray, bool]:
    """Longitudes eastwards from the widest gap, or from 0 where there is none; their order; whether they close."""
    # What lies a rounding below 0 is 0.
    turned = np.mod(longitude, 360.0)
    turned = np.where(turned > 360.0 - 1e-4, turned - 360.0, turned)
    order = np.argsort(turned, kind="stable")
    ascending = turned[order]
    if len(ascending) < 2:
        return longitude.copy(), order, False
    steps = np.diff(np.append(ascending, ascending[0] + 360.0))
    typical = float(np.median(steps))
    if steps.min() < 0.01 * typical:
        place = int(np.argmin(steps))
        raise DataError(
            f"{where} has the longitude {ascending[place]:g} twice, as in files with a cyclic column: drop one of them"
        )
    if steps.max() <= 1.5 * typical:
        return ascending, order, True
    first = (int(np.argmax(steps)) + 1) % len(ascending)
    order = np.roll(order, -first)
    regional = turned[order]
    regional = np.where(regional < regional[0], regional + 360.0, regional)
    # East of 180 and not across the date line, files mostly count from -180.
    return (regional - 360.0 if regional[0] > 180.0 and regional[-1] > 360.0 else regional), order, False


def _pixels_close_circle(longitude: np.ndarray) -> bool:
    if longitude.shape[1] < 4:
        return False
    steps = np.abs(np.mod(np.diff(longitude, axis=1) + 180.0, 360.0) - 180.0)
    seam = np.abs(np.mod(longitude[:, 0] - longitude[:, -1] + 180.0, 360.0) - 180.0)
    # Columns may overlap, as in ORCA grids: then the seam is not one step wide.
    ratio = np.median(seam) / max(float(np.median(steps)), 1e-9)
    covers = np.median(steps.sum(axis=1) + seam) > 300.0
    return bool(covers and 0.5 <= ratio <= 1.5)


def _to_neighbours(points: np.ndarray, axis: int) -> np.ndarray:
    """The shorter of the vectors to the next and from the previous pixel; the longer may cross a fold of the grid."""
    steps = np.diff(points, axis=axis)
    padding = [(0, 0)] * 3
    onwards, before = (np.pad(steps, [*padding[:axis], pad, *padding[axis + 1 :]], "edge") for pad in ((0, 1), (1, 0)))
    is_shorter = np.linalg.norm(onwards, axis=-1) <= np.linalg.norm(before, axis=-1)
    return np.where(is_shorter[..., None], onwards, before)


def _coordinate(array: xr.DataArray, dimension: str) -> np.ndarray | None:
    if dimension not in array.coords or array[dimension].dtype.kind not in "iuf":
        return None
    return np.asarray(array[dimension].values, np.float64)


def _check_values(values: np.ndarray, where: str, *, limit: float | None) -> None:
    if not np.isfinite(values).all():
        raise DataError(f"{where} has {int((~np.isfinite(values)).sum())} values that are not finite")
    if limit is not None and abs(worst := values.flat[np.argmax(np.abs(values))]) > limit + 1e-6:
        raise DataError(f"{where} has the value {worst:g}, outside of {limit:g} degrees")


def read_pole(mapping: Mapping[str, Any]) -> tuple[float, float] | None:
    """Latitude and longitude of a rotated pole from the attributes of a grid mapping; None if they are not there."""
    names = ("grid_north_pole_latitude", "grid_north_pole_longitude")
    if not mapping.keys() >= set(names):
        return None
    latitude, longitude = (float(np.asarray(mapping[name]).ravel()[0]) for name in names)
    return latitude, longitude


def _place(pole: tuple[float, float] | None) -> str:
    return "an unknown place" if pole is None else f"{pole[0]:g}, {pole[1]:g}"


def _largest_distance(ours: np.ndarray, theirs: np.ndarray, *, is_circular: bool) -> float:
    if not ours.size or ours.shape != theirs.shape:
        return 0.0 if ours.shape == theirs.shape else np.inf
    distance = ours - theirs
    if is_circular:
        distance = np.mod(distance + 180.0, 360.0) - 180.0
    return float(np.abs(distance).max())


def _step(values: np.ndarray) -> float:
    if not values.size or values.shape[-1] < 2:
        return 1.0
    axis = 0 if values.ndim == 2 and values.shape[0] > 1 else -1
    steps = np.abs(np.diff(values, axis=axis))
    steps = np.minimum(steps, np.abs(360.0 - steps)) if values.ndim == 2 else steps
    return max(float(np.median(steps)), 1e-6)


@dataclass(frozen=True)
class NodeGrid(HorizontalGrid):
    """Nodes in the order of their file: a grid of one row whose columns are not neighbours.

    `rows` holds the places of the nodes, `(N, 3)`; `description` is such as `mesh of 96 faces`.
    """

    description: str = ""

    @property
    def remedy(self) -> str:
        return "give the same nodes in the same order, or fit a model for these"

    def difference(self, other: HorizontalGrid) -> str | None:
        both = f"{self.describe()} against {other.describe()}"
        if not isinstance(other, NodeGrid) or self.shape != other.shape:
            return f"{both}: they differ in kind or size"
        distance = float(np.linalg.norm(self.rows - other.rows, axis=1).max())
        # A share of the distance of neighbours, as if the nodes filled a surface: files round coordinates.
        extent = float(np.ptp(self.rows, axis=0).max())
        if distance <= 0.02 * extent / np.sqrt(self.shape[1]):
            return None
        if self.description != other.description:
            return both
        return f"{both}: their nodes differ by up to {distance:.3g}, so that it is another mesh, or another order"

    def describe(self) -> str:
        return self.description

    def area_weights(self) -> None:
        """None: all nodes count alike."""


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
