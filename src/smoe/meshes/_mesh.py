"""A mesh: nodes, edges, places, and how they are stored with a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from smoe.errors import DataError
from smoe.ops._healpix import HEALPixOrder


@dataclass(frozen=True)
class Mesh:
    """Nodes in space, the edges between them, and fields on them.

    Nodes are what the fields belong to: the points of a mesh, or its faces.

    Attributes:
        coordinates: Places of the nodes, `(N, 3)`, float64. Longitudes and latitudes are points of the unit sphere.
        edge_index: Source and target of each edge in both directions, `(2, M)`, int64, sorted by target.
        fields: Fields by their names, `(..., N)`, float32; missing values are NaN.
        triangles: Corners of the triangles of a surface, `(T, 3)`; None if it has other faces.
        nside: Pixels along a side of a face of a HEALPix sphere; None for other meshes.
        pixel_order: Order of its pixels.
        dimension: Dimension of the nodes in a NetCDF file or Zarr folder; None for other files.
    """

    coordinates: torch.Tensor
    edge_index: torch.Tensor
    fields: Mapping[str, torch.Tensor] = field(default_factory=dict)
    triangles: torch.Tensor | None = None
    nside: int | None = None
    pixel_order: HEALPixOrder | None = None
    dimension: str | None = None

    def __post_init__(self) -> None:
        if not bool(self.coordinates.isfinite().all()):
            bad = int((~self.coordinates.isfinite()).any(dim=1).nonzero()[0])
            raise DataError(f"node {bad} has coordinates {self.coordinates[bad].tolist()}, which are not finite")
        for name, values in self.fields.items():
            if values.shape[-1] != self.num_nodes:
                raise DataError(
                    f"the field {name} has {values.shape[-1]} values in its last dimension for {self.num_nodes} nodes"
                )

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.coordinates)

    def smallest(self) -> Mesh:
        """A mesh of the same kind with as few nodes as can be: one, or the twelve pixels of a sphere."""
        num_nodes = 1 if self.nside is None else 12
        return Mesh(
            torch.zeros(num_nodes, 3),
            torch.empty((2, 0), dtype=torch.int64),
            nside=None if self.nside is None else 1,
            pixel_order=self.pixel_order,
        )


def on_sphere(latitude: np.ndarray, longitude: np.ndarray) -> np.ndarray:
    """Points of the unit sphere `(N, 3)` for angles in degrees."""
    latitude, longitude = np.radians(latitude), np.radians(longitude)
    return np.stack(
        [np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), np.sin(latitude)], axis=-1
    )


def edges_of_sides(sides: np.ndarray) -> np.ndarray:
    """Edges `(2, M)` in both directions, each once, of pairs of nodes `(S, 2)`; sides of length 0 are left out."""
    both = np.concatenate([sides, sides[:, ::-1]])
    both = both[both[:, 0] != both[:, 1]]
    # Sorted by target, then by source.
    return np.ascontiguousarray(np.unique(both[:, ::-1], axis=0)[:, ::-1].T)


def sides_of_faces(faces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sides `(S, 2)` of faces `(F, most)` with -1 for missing corners, and the face of each side `(S,)`."""
    sides, owners = [], []
    numbers = np.arange(len(faces))
    counts = (faces >= 0).sum(axis=1)
    for corner in range(faces.shape[1]):
        has = counts > corner
        following = np.where(counts == corner + 1, 0, corner + 1) % faces.shape[1]
        end = np.take_along_axis(faces, following[:, None], axis=1)[:, 0]
        sides.append(np.stack([faces[has, corner], end[has]], axis=1))
        owners.append(numbers[has])
    return np.concatenate(sides), np.concatenate(owners)


def face_centres(places: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """Means of the corners of faces `(F, most)` with -1 for missing corners, `(F, 3)`."""
    weight = (faces >= 0)[..., None]
    return (places[faces] * weight).sum(axis=1) / weight.sum(axis=1)


def edges_of_neighbours(faces: np.ndarray) -> np.ndarray:
    """Edges between faces that share a side, `(2, M)`."""
    sides, owners = sides_of_faces(faces)
    _, numbers = np.unique(np.sort(sides, axis=1), axis=0, return_inverse=True)
    order = np.argsort(numbers.reshape(-1), kind="stable")
    sorted_numbers, sorted_owners = numbers.reshape(-1)[order], owners[order]
    # Faces of one side stand beside each other; where three meet, each is joined with the next.
    is_same = sorted_numbers[1:] == sorted_numbers[:-1]
    return edges_of_sides(np.stack([sorted_owners[:-1][is_same], sorted_owners[1:][is_same]], axis=1))


def mesh_arrays(mesh: Mesh) -> dict[str, np.ndarray]:
    """Coordinates, edges and triangles by names that begin with `mesh.`."""
    arrays = {"mesh.coordinates": mesh.coordinates.numpy(), "mesh.edge_index": mesh.edge_index.numpy()}
    return arrays if mesh.triangles is None else arrays | {"mesh.triangles": mesh.triangles.numpy()}


def mesh_words(mesh: Mesh) -> dict[str, Any]:
    """What JSON keeps of a mesh."""
    return {"nside": mesh.nside, "pixel_order": mesh.pixel_order, "dimension": mesh.dimension}


def mesh_from_files(words: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Mesh:
    """The inverse of `mesh_words` and `mesh_arrays`."""
    triangles = arrays.get("mesh.triangles")
    return Mesh(
        torch.from_numpy(arrays["mesh.coordinates"]),
        torch.from_numpy(arrays["mesh.edge_index"]),
        triangles=None if triangles is None else torch.from_numpy(triangles),
        nside=words["nside"],
        pixel_order=words["pixel_order"],
        dimension=words["dimension"],
    )
