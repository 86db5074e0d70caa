"""The domains on which heat diffuses: their nodes, edges and coordinates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Domain:
    """A graph in space.

    Attributes:
        name: Name of the domain.
        edges: Source and target of each edge, both directions, `(2, M)`, int64.
        coordinates: Coordinates of the nodes, `(N, 3)`, float64.
        spatial_shape: Grid of the nodes; `(N,)` if there is none.
        full_degree: Neighbours of an inner node on a grid, whose border is a row of zeros; None on a mesh without one.
        triangles: Corners of the triangles, `(T, 3)`, where the domain is a surface.
    """

    name: str
    edges: np.ndarray
    coordinates: np.ndarray
    spatial_shape: tuple[int, ...]
    full_degree: int | None = None
    triangles: np.ndarray | None = None

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.coordinates)

    def degrees(self) -> np.ndarray:
        """Number by which the sum over the neighbours of each node is divided, `(N,)`."""
        if self.full_degree is not None:
            return np.full(self.num_nodes, self.full_degree)
        return np.bincount(self.edges[1], minlength=self.num_nodes)


def _grid(name: str, shape: tuple[int, ...]) -> Domain:
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    pairs = []
    for axis in range(len(shape)):
        here = numbers.take(range(shape[axis] - 1), axis=axis).reshape(-1)
        there = numbers.take(range(1, shape[axis]), axis=axis).reshape(-1)
        pairs += [np.stack([here, there]), np.stack([there, here])]
    places = np.stack(np.meshgrid(*(np.arange(size, dtype=float) for size in shape), indexing="ij"), axis=-1)
    coordinates = np.zeros((numbers.size, 3))
    coordinates[:, : len(shape)] = places.reshape(numbers.size, -1)
    return Domain(name, np.concatenate(pairs, axis=1), coordinates, shape, full_degree=2 * len(shape))


def line(length: int = 4096) -> Domain:
    """Pixels in a row."""
    return _grid("line", (length,))


def volume(size: int = 32) -> Domain:
    """A cube of voxels, each with six neighbours."""
    return _grid("volume", (size, size, size))


def healpix(nside: int = 32) -> Domain:
    """Pixels of a HEALPix sphere in the order of its faces, each with the four neighbours across its edges."""
    import torch

    from smoe.ops._healpix import healpix_coordinates, pad_faces

    shape = (12, nside, nside)
    numbers = torch.arange(12 * nside * nside, dtype=torch.float64).view(1, 1, *shape)
    padded = pad_faces(numbers, 1)[0, 0]
    inner = slice(1, nside + 1)
    around = [padded[:, :-2, inner], padded[:, 2:, inner], padded[:, inner, :-2], padded[:, inner, 2:]]
    source = torch.cat([part.flatten() for part in around]).long().numpy()
    target = np.tile(np.arange(12 * nside * nside), 4)
    latitude, longitude = np.radians(healpix_coordinates(nside).numpy().T)
    coordinates = np.stack(
        [np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), np.sin(latitude)], axis=1
    )
    return Domain("healpix", np.stack([source, target]), coordinates, shape)


def icosphere(num_subdivisions: int = 4) -> Domain:
    """An icosahedron whose triangles are cut in four repeatedly, on the unit sphere: 2,562 nodes after four times."""
    golden = (1 + 5**0.5) / 2
    corners = [(-1, golden, 0), (1, golden, 0), (-1, -golden, 0), (1, -golden, 0)]
    points = [np.roll(np.array(corner, dtype=float), shift) for shift in (0, 1, 2) for corner in corners]
    points = [point / np.linalg.norm(point) for point in points]
    # Corners of an icosahedron are neighbours at the shortest distance.
    distance = np.linalg.norm(np.array(points)[:, None] - np.array(points)[None], axis=2)
    near = (distance > 0) & (distance < 1.1)
    triangles = [
        (a, b, c)
        for a in range(12)
        for b in range(a + 1, 12)
        for c in range(b + 1, 12)
        if near[a, b] and near[b, c] and near[a, c]
    ]
    for _ in range(num_subdivisions):
        middles: dict[tuple[int, int], int] = {}

        def middle(a: int, b: int, middles: dict[tuple[int, int], int] = middles) -> int:
            key = (min(a, b), max(a, b))
            if key not in middles:
                point = points[a] + points[b]
                middles[key] = len(points)
                points.append(point / np.linalg.norm(point))
            return middles[key]

        finer = []
        for a, b, c in triangles:
            ab, bc, ca = middle(a, b), middle(b, c), middle(c, a)
            finer += [(a, ab, ca), (b, bc, ab), (c, ca, bc), (ab, bc, ca)]
        triangles = finer
    return _surface("icosphere", np.array(points), np.array(triangles))


def fsaverage5(hemisphere: str = "left") -> Domain:
    """The pial surface of one hemisphere of the average brain fsaverage5, which nilearn ships: 10,242 nodes."""
    try:
        from nilearn.datasets import load_fsaverage
    except ImportError as error:
        raise ImportError("fsaverage5 comes with nilearn; pip install nilearn") from error
    mesh = load_fsaverage("fsaverage5")["pial"].parts[hemisphere]
    return _surface("fsaverage5", np.asarray(mesh.coordinates, float), np.asarray(mesh.faces, np.int64))


def _surface(name: str, points: np.ndarray, triangles: np.ndarray) -> Domain:
    sides = np.concatenate([triangles[:, [0, 1]], triangles[:, [1, 2]], triangles[:, [2, 0]]])
    both = np.concatenate([sides, sides[:, ::-1]])
    edges = np.unique(both, axis=0).T
    return Domain(name, np.ascontiguousarray(edges), points, (len(points),), triangles=triangles)


DOMAINS: dict[str, Callable[[], Domain]] = {
    "line": line,
    "volume": volume,
    "healpix": healpix,
    "icosphere": icosphere,
    "fsaverage5": fsaverage5,
}
