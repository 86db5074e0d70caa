"""Reads meshes: UGRID and HEALPix files, and what meshio has read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from smoe.errors import DataError
from smoe.gridded._open import open_one
from smoe.meshes._mesh import (
    Mesh,
    edges_of_neighbours,
    edges_of_sides,
    face_centres,
    fields_on,
    read_nodes,
    sides_of_faces,
)
from smoe.meshes._node_rows import Location, make_mesh

_ENDINGS = (".nc", ".nc4", ".zarr")
# Corners of the sides of a cell, by meshio's name of it.
_SIDES = {
    "vertex": [],
    "line": [(0, 1)],
    "tetra": [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)],
    "pyramid": [(0, 1), (1, 2), (2, 3), (3, 0), (0, 4), (1, 4), (2, 4), (3, 4)],
    "wedge": [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3), (0, 3), (1, 4), (2, 5)],
    "hexahedron": [(0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (5, 6), (6, 7), (7, 4), (0, 4), (1, 5), (2, 6), (3, 7)],
}
_FLAT = ("triangle", "quad", "polygon")


def read_mesh(source: Any, *, location: Location | None = None) -> Mesh:
    """Reads coordinates, edges and fields of a mesh.

    Args:
        source: NetCDF file or Zarr folder with a UGRID mesh or a HEALPix sphere; or a `meshio.Mesh`, as `meshio.read`
            returns it for VTK, gmsh and many other formats.
        location: What the nodes of the graph are: the points of the mesh (`node`) or its faces (`face`). By default
            that of the fields in the file, or the points where there are none.

    Raises:
        DataError: If the file holds no mesh, has no connectivity, or its connectivity names points that do not exist.

    Example:
        >>> mesh = smoe.read_mesh("ocean.nc")
        >>> layer = smoe.GraphMoE(1, 4, num_nodes=mesh.num_nodes, coordinates=mesh.coordinates)
        >>> layer(mesh.fields["sst"][:, :, None], mesh.edge_index)
        >>> surface = smoe.read_mesh(meshio.read("surface.vtu"))
    """
    if location is not None and location not in get_args(Location):
        raise ValueError(f"location must be one of {', '.join(get_args(Location))}, got {location!r}")
    if hasattr(source, "cells"):
        return _from_meshio(source, location)
    path = Path(source)
    if not path.exists():
        raise FileNotFoundError(f"there is no mesh file {path}")
    if path.suffix.lower() not in _ENDINGS:
        known = ", ".join(_ENDINGS)
        raise DataError(
            f"{path}: meshes are read from {known}, got {path.suffix!r}: give what meshio.read returns for it"
        )
    (dataset,) = open_one(path, {"decode_times": False})
    with dataset:
        try:
            nodes = read_nodes(dataset, location)
            fields = {
                name: dataset[name].transpose(..., nodes.dimension) for name in fields_on(dataset, nodes.dimension)
            }
            return make_mesh(nodes, {name: _as_tensor(field.values) for name, field in fields.items()})
        except DataError as error:
            raise DataError(f"{path}: {error}") from error
        except (ValueError, IndexError) as error:
            raise DataError(f"{path}: it cannot be read, the file is damaged or incomplete ({error})") from error


def _as_tensor(values: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(values, dtype=np.float32))


def _from_meshio(mesh: Any, location: str | None) -> Mesh:
    points = np.asarray(mesh.points, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] > 3:
        raise DataError(f"its points have the shape {points.shape}, expected one to three coordinates each")
    points = np.pad(points, ((0, 0), (0, 3 - points.shape[1])))
    cells = [_checked(block, len(points)) for block in mesh.cells]
    flat = [number for number, block in enumerate(mesh.cells) if block.type in _FLAT]
    if location == "face":
        if not flat:
            raise DataError(f"has no triangles, quads or polygons, but location is 'face'; cells: {_kinds(mesh)}")
        most = max(cells[number].shape[1] for number in flat)
        padded = [np.pad(cells[n], ((0, 0), (0, most - cells[n].shape[1])), constant_values=-1) for n in flat]
        faces = np.concatenate(padded)
        values = {
            name: np.concatenate([np.asarray(blocks[number]) for number in flat])
            for name, blocks in mesh.cell_data.items()
        }
        places, edges = face_centres(points, faces), edges_of_neighbours(faces)
    else:
        sides = [np.zeros((0, 2), dtype=np.int64)]
        for block, corners in zip(mesh.cells, cells, strict=True):
            if block.type in _FLAT:
                sides.append(sides_of_faces(corners)[0])
            elif block.type in _SIDES:
                sides += [corners[:, list(pair)] for pair in _SIDES[block.type]]
            else:
                raise DataError(f"has cells of type {block.type!r}, whose sides are not known here; convert them first")
        values, places, edges = mesh.point_data, points, edges_of_sides(np.concatenate(sides))
        if not edges.size:
            raise DataError(f"has no connectivity: its cells are {_kinds(mesh)}")
    # Numbers, and no tags of a format, such as `gmsh:dim_tags`; the components of a vector stand before the nodes.
    fields = {
        name: _as_tensor(np.moveaxis(np.asarray(each), 0, -1))
        for name, each in values.items()
        if ":" not in name and np.asarray(each).dtype.kind in "fiu"
    }
    return Mesh(torch.from_numpy(places), torch.from_numpy(edges), fields)


def _checked(block: Any, num_points: int) -> np.ndarray:
    cells = np.asarray(block.data, dtype=np.int64)
    low, high = cells.min(initial=num_points), cells.max(initial=-1)
    if low < 0 or high >= num_points:
        raise DataError(
            f"its {block.type} cells name the points {low} to {high}, but there are {num_points}, numbered from 0"
        )
    return cells


def _kinds(mesh: Any) -> str:
    return ", ".join(sorted({block.type for block in mesh.cells})) or "none"
