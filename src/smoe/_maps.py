"""Where pixels lie, and pictures of them: for each dot of a picture, the pixel that is shown there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from smoe._notebook import coastlines, project

# Dots of a side of a globe or body, and the least number of dots of a row of a map with coastlines.
_SIDE, _MIN_COLUMNS = 360, 480
# Pairs of opposite sides, each by the latitude and longitude of the place in its middle.
_SIDES = {
    "front and back": ((0, 0), (0, 180)),
    "right and left": ((0, 90), (0, -90)),
    "above and below": ((90, 0), (-90, 0)),
}
_COAST_LIGHT = 64


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
        """Returns the places of a coarser or finer map of the same area."""
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
class View:
    """One picture of pixels."""

    name: str  # what it shows, such as `front and back`
    cells: np.ndarray  # number of the pixel at each dot, `(H, W)`; -1 where there is none
    light: np.ndarray | None = None  # brightness of each dot, dark for coastlines and the rims of a body, uint8
    ratio: float | None = None  # width over height of the picture on the page; None for square dots
    ticks: tuple[list[tuple[float, str]], list[tuple[float, str]]] = ([], [])  # along the width and the height


def thinned(places: Places, max_pixels: int) -> tuple[Places, int]:
    """Returns every second, third, ... row and column of a large grid, and this step; a mesh is returned whole."""
    step = 1
    while places.kind != "mesh" and math.prod(-(-size // step) for size in places.shape) > max_pixels:
        step += 1
    if step == 1:
        return places, 1
    every = slice(None, None, step)
    rows, columns = (
        None if axis is None else replace(axis, values=axis.values[(every,) * axis.values.ndim])
        for axis in (places.rows, places.columns)
    )
    return replace(places, shape=tuple(-(-size // step) for size in places.shape), rows=rows, columns=columns), step


def take(values: np.ndarray, shape: tuple[int, ...], step: int) -> np.ndarray:
    """Returns the values `(n, P)` of the pixels of a grid that `thinned` keeps."""
    if step == 1:
        return values
    part = values.reshape(-1, *shape)[(slice(None), *(slice(None, None, step) for _ in shape))]
    return np.ascontiguousarray(part).reshape(len(values), -1)


def make_views(places: Places) -> tuple[list[View], int]:
    """Returns the pictures of some places, and the number of the one that is shown first."""
    if places.coordinates is not None:
        return _mesh_views(places.coordinates), 0
    if places.kind == "globe":
        return _globe_views(places), 0
    cells = np.arange(places.num_pixels).reshape(places.shape)
    if len(places.shape) == 3:
        slices = [
            View(f"slice {number + 1} of {size} along the {name} axis", np.take(cells, number, axis))
            for axis, (size, name) in enumerate(zip(places.shape, ("first", "second", "third"), strict=True))
            for number in range(size)
        ]
        return slices, places.shape[0] // 2
    if min(places.shape) == 1 or len(places.shape) == 1:
        num_columns = min(cells.size, max(16, 2 ** round(math.log2(math.sqrt(2 * cells.size)))))
        cells = np.pad(cells.ravel(), (0, -cells.size % num_columns), constant_values=-1)
        return [View("pixels in rows", cells.reshape(-1, num_columns))], 0
    return [_map_view(places, cells[::-1] if places.goes_up else cells)], 0


def coordinate_texts(axis: Axis, is_geographic: bool, is_row: bool) -> list[str]:
    """Returns coordinates as readers write them: 45°N, or a number with the name and units of the axis."""
    if not is_geographic:
        return [f"{axis.name} {value:.5g}{f' {axis.units}' if axis.units else ''}" for value in axis.values.ravel()]
    values = axis.values.ravel() if is_row else (axis.values.ravel() + 180.0) % 360.0 - 180.0
    letters = "SN" if is_row else "WE"
    return [f"{abs(value):.5g}°{letters[int(value > 0)] if value else ''}" for value in values]


def _map_view(places: Places, cells: np.ndarray) -> View:
    """A map, the first row of `cells` at the top; with coordinates and coastlines where rows and columns have them."""
    rows, columns = places.rows, places.columns
    if rows is None or columns is None or rows.values.ndim != 1 or min(cells.shape) < 2:
        return View("map", cells)
    down, across = rows.values[:: -1 if places.goes_up else 1], columns.values
    height, width = (abs(axis[-1] - axis[0]) / (len(axis) - 1) for axis in (down, across))
    light, ratio = None, None
    if places.is_geographic:
        width *= math.cos(math.radians((down[0] + down[-1]) / 2))
        parts = -(-_MIN_COLUMNS // len(across))
        cells = cells.repeat(parts, axis=0).repeat(parts, axis=1)
        longitude, latitude = _coast(across, down, min(np.ptp(across) / cells.shape[1], np.ptp(down) / cells.shape[0]))
        light = _coast_light(cells, parts * (_index(down, latitude) + 0.5), parts * (_index(across, longitude) + 0.5))
    if height and width and (places.is_geographic or rows.units == columns.units):
        # A narrow band is stretched: its coordinates stand beside it.
        ratio = min(8.0, len(across) / len(down) / min(4.0, max(0.25, height / width)))
    ticks = []
    for values, is_row in ((across, False), (down, True)):
        round_values = _round_values(values, places.is_geographic)
        texts = coordinate_texts(Axis("", round_values), places.is_geographic, is_row)
        shares = (_index(values, round_values) + 0.5) / len(values)
        ticks.append([(float(share), text.strip()) for share, text in zip(shares, texts, strict=True)])
    return View("map", cells, light, ratio, (ticks[0], ticks[1]))


def _round_values(values: np.ndarray, is_geographic: bool) -> np.ndarray:
    """Two to five round numbers between the ends of an axis."""
    quarter = np.ptp(values) / 4 or 1.0
    power = 10.0 ** math.floor(math.log10(quarter))
    factors = (1, 1.5, 3, 4.5, 6, 9) if is_geographic and power >= 10.0 else (1, 2, 5, 10)
    step = next((power * factor for factor in factors if power * factor >= quarter), quarter)
    return step * np.arange(math.ceil(values.min() / step - 1e-9), math.floor(values.max() / step + 1e-9) + 1)


def _index(axis: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Where values lie on a coordinate, as a number of its steps; beyond its ends the first or last step goes on."""
    order = slice(None, None, 1 if axis[0] < axis[-1] else -1)
    known, steps = axis[order], np.arange(len(axis), dtype=float)[order]
    ends = [2 * known[:1] - known[1:2], known, 2 * known[-1:] - known[-2:-1]]
    outer = [2 * steps[:1] - steps[1:2], steps, 2 * steps[-1:] - steps[-2:-1]]
    return np.interp(values, np.concatenate(ends), np.concatenate(outer), left=np.inf, right=np.inf)


def _globe_views(places: Places) -> list[View]:
    """The whole globe in Mollweide's equal-area projection, Greenwich in the middle; and from all sides."""
    if places.rows is None or places.columns is None:
        raise ValueError("a globe needs latitudes and longitudes")
    rows, num_columns = places.rows.values, places.shape[1]
    around = np.concatenate([places.columns.values % 360.0 + turn for turn in (-360.0, 0.0, 360.0)])
    step = np.abs(np.diff(rows)).max(initial=0.0)

    def cells_at(latitude: np.ndarray, longitude: np.ndarray, is_seen: np.ndarray) -> np.ndarray:
        column = _nearest(around, longitude % 360.0) % num_columns
        # Rows may end far from the poles.
        is_seen = is_seen & (latitude > rows.min() - step) & (latitude < rows.max() + step)
        return np.where(is_seen, _nearest(rows, latitude) * num_columns + column, -1)

    coast_east, coast_north = _coast(np.array([-180.0, 180.0]), np.array([-90.0, 90.0]), 0.25)
    up, right = _dot_places(_SIDE, 2 * _SIDE)
    angle = np.arcsin(up)
    latitude = np.rad2deg(np.arcsin((2 * angle + np.sin(2 * angle)) / np.pi))
    longitude = 180.0 * right / np.cos(angle)
    cells = cells_at(latitude, longitude, np.abs(longitude) <= 180.0)
    x, y = project(coast_east, coast_north)
    dots = _SIDE / 2 * (1 - y), _SIDE * (1 + x)
    views = [View("map of the whole globe", cells, _coast_light(cells, *dots))]
    north, east = np.deg2rad(coast_north), np.deg2rad(coast_east)
    coast = np.stack([np.cos(north) * np.cos(east), np.cos(north) * np.sin(east), np.sin(north)])
    up, right = _dot_places(_SIDE, _SIDE)
    near = np.sqrt(np.maximum(0.0, 1.0 - up**2 - right**2))
    for name, pair in _SIDES.items():
        sides = []
        for middle in pair:
            axes = _axes(*middle)
            x, y, z = np.tensordot(axes, np.stack([right, up, near]), (0, 0))
            place = np.rad2deg(np.arcsin(np.clip(z, -1.0, 1.0))), np.rad2deg(np.arctan2(y, x))
            cells = cells_at(*place, near > 0.0)
            to_right, to_up, to_viewer = axes @ coast
            is_seen = to_viewer > 0.0
            dots = _SIDE / 2 * (1 - to_up[is_seen]), _SIDE / 2 * (1 + to_right[is_seen])
            sides.append((cells, _coast_light(cells, *dots)))
        views.append(_side_by_side(f"globe, {name}", sides))
    return views


def _side_by_side(name: str, sides: list[tuple[np.ndarray, np.ndarray]]) -> View:
    cells, light = zip(*sides, strict=True)
    return View(name, np.hstack(cells), np.hstack(light))


def _dot_places(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of dots upwards and to the right, from -1 to 1."""
    up, right = (2 * (np.arange(size) + 0.5) / size - 1 for size in (height, width))
    up, right = np.meshgrid(-up, right, indexing="ij")
    return up, right


def _nearest(axis: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Index of the nearest number of an axis, which may be in any order."""
    order = np.argsort(axis, kind="stable")
    middles = (axis[order][1:] + axis[order][:-1]) / 2
    return order[np.searchsorted(middles, values)]


def _axes(north: float, east: float) -> np.ndarray:
    """Directions to the right, up and towards the viewer of somebody above a place of the globe, `(3, 3)`."""
    (sin_n, cos_n), (sin_e, cos_e) = ((math.sin(angle), math.cos(angle)) for angle in np.deg2rad([north, east]))
    return np.array(
        [[-sin_e, cos_e, 0.0], [-sin_n * cos_e, -sin_n * sin_e, cos_n], [cos_n * cos_e, cos_n * sin_e, sin_n]]
    )


def _coast(longitudes: np.ndarray, latitudes: np.ndarray, step: float) -> tuple[np.ndarray, np.ndarray]:
    """Longitudes and latitudes of points of the coast in and around a map, less than `step` degrees apart."""
    # A map may count longitudes from -180, from 0, or across either.
    lines = [np.add(line, (turn, 0.0)) for line in coastlines() for turn in (-360.0, 0.0, 360.0)]
    first, last = (np.concatenate([line[part] for line in lines]) for part in (slice(None, -1), slice(1, None)))
    axes = (longitudes, latitudes)
    room = np.array([np.ptp(axis) / (len(axis) - 1) for axis in axes])
    low, high = np.array([axis.min() for axis in axes]) - room, np.array([axis.max() for axis in axes]) + room
    is_near = ((np.maximum(first, last) >= low) & (np.minimum(first, last) <= high)).all(axis=1)
    first, last = first[is_near], last[is_near]
    counts = np.ceil(1.5 * np.abs(last - first).max(axis=1) / step).astype(int) + 1
    share = _counters(counts) / np.repeat(counts, counts)
    longitude, latitude = np.repeat(first.T, counts, axis=1) + share * np.repeat((last - first).T, counts, axis=1)
    return longitude, latitude


def _coast_light(cells: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    light = np.full(cells.shape, 255, np.uint8)
    is_inside = (rows >= 0) & (rows < cells.shape[0]) & (columns >= 0) & (columns < cells.shape[1])
    light[rows[is_inside].astype(int), columns[is_inside].astype(int)] = _COAST_LIGHT
    return light


def _counters(counts: np.ndarray) -> np.ndarray:
    """Returns 0, 1, ..., n - 1 for each n of some counts, one after the other."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _mesh_views(nodes: np.ndarray) -> list[View]:
    """A mesh that is flat, or nearly so, from above; any other from all sides. Nodes are discs that meet."""
    from scipy.spatial import KDTree

    space = np.pad(nodes.astype(float), ((0, 0), (0, 3 - nodes.shape[1])))
    space -= (space.min(axis=0) + space.max(axis=0)) / 2
    width, depth, height = np.ptp(space, axis=0)
    distances = np.asarray(KDTree(space).query(space, min(6, len(space)))[0]).reshape(len(space), -1)[:, -1:]
    radii = np.maximum(
        np.minimum(distances[:, 0], 2 * np.quantile(distances, 0.95)), 0.02 * max(width, depth, height, 1e-9)
    )
    if 2 * height <= min(width, depth):
        return [View("from above", *_mesh_side(space, radii, np.eye(3), (width, depth), 2 * _SIDE, 4))]
    size = (2 * np.linalg.norm(space, axis=1).max(),) * 2
    return [
        _side_by_side(name, [_mesh_side(space, radii, _axes(*middle), size, _SIDE, 24) for middle in pair])
        for name, pair in _SIDES.items()
    ]


def _mesh_side(
    space: np.ndarray, radii: np.ndarray, axes: np.ndarray, size: tuple[float, float], max_dots: int, num_near: int
) -> tuple[np.ndarray, np.ndarray]:
    """Cells and light of nodes in parallel projection: what is near covers what is far, and is brighter."""
    from scipy.spatial import KDTree

    # Nodes on a line have a height too.
    size = (max(size[0], 0.1 * size[1], 1e-9), max(size[1], 0.1 * size[0], 1e-9))
    scale = (max_dots - 8) / (max(size) + 2 * radii.max())
    width, height = (math.ceil((side + 2 * radii.max()) * scale) + 8 for side in size)
    right, up, near = scale * (axes @ space.T)
    dots = np.indices((height, width)).reshape(2, -1).T
    known = KDTree(np.stack([height / 2 - up, width / 2 + right], axis=1))
    distance, node = (np.asarray(part).reshape(len(dots), -1) for part in known.query(dots, min(num_near, len(space))))
    radius = scale * radii[node]
    # The middle of a disc is nearer than its rim, so that neighbours meet half-way.
    depth = np.where(distance <= radius, near[node] - distance**2 / radius, -np.inf)
    best = depth.argmax(axis=1)[:, None]
    depth, node = (np.take_along_axis(part, best, axis=1).reshape(height, width) for part in (depth, node))
    is_seen = np.isfinite(depth)
    span = np.ptp(near)
    share = (np.where(is_seen, depth, near.max()) - near.min()) / span if span > 1e-9 else np.ones_like(depth)
    return np.where(is_seen, node, -1), (255 * np.clip(0.68 + 0.32 * share, 0.68, 1.0)).astype(np.uint8)
