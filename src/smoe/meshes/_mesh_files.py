"""Meshes from UGRID and HEALPix files, and from what meshio has read; their fields as a grid of one row.

A row of nodes, which `GridRegressor` reads, has the dimensions (time, level, nj, ni) with nj of size 1. The attribute
of one of its coordinates holds the nodes, with the variables of the topology as the file has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch

from smoe._files import check_netcdf_file, check_zarr_store
from smoe.errors import DataError, naming_extras
from smoe.meshes._mesh import (
    NODES,
    Mesh,
    Nodes,
    edges_of_neighbours,
    edges_of_sides,
    face_centres,
    fields_on,
    has_healpix,
    read_nodes,
    sides_of_faces,
    topology_variables,
)

if TYPE_CHECKING:
    import xarray as xr

Location = Literal["node", "face"]
FIELD_SUFFIXES = (".nc", ".nc4", ".zarr")

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
        name: torch.from_numpy(np.moveaxis(np.asarray(each, dtype=np.float32), 0, -1).copy())
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


def open_mesh_dataset(path: Path, **options: Any) -> Any:
    """Opens a NetCDF file or Zarr store that is whole; errors do not name the file."""
    with naming_extras("reading a mesh from NetCDF or Zarr"):
        import xarray
    try:
        if path.is_dir():
            store, is_consolidated = check_zarr_store(path)
            return xarray.open_dataset(store, engine="zarr", consolidated=is_consolidated, **options)
        check_netcdf_file(path)
        return xarray.open_dataset(path, engine="netcdf4", **options)
    except DataError as error:
        raise DataError(str(error).removeprefix(str(path)).lstrip(": ")) from error
    except Exception as error:  # each library has errors of its own
        raise DataError(f"cannot be opened as NetCDF or Zarr ({' '.join(str(error).split())})") from error


def _read_field_file(path: Path, location: str | None) -> Mesh:
    with open_mesh_dataset(path, decode_times=False) as dataset:
        nodes = read_nodes(dataset, location)
        fields = {
            name: np.ascontiguousarray(dataset[name].transpose(..., nodes.dimension).values, dtype=np.float32)
            for name in fields_on(dataset, nodes.dimension)
        }
        return make_mesh(nodes, {name: torch.from_numpy(values) for name, values in fields.items()})


def make_mesh(nodes: Nodes, fields: dict[str, torch.Tensor] | None = None) -> Mesh:
    return Mesh(
        torch.from_numpy(np.ascontiguousarray(nodes.places, dtype=np.float64)),
        torch.from_numpy(nodes.edges().astype(np.int64)),
        fields or {},
        nside=nodes.nside,
        pixel_order=nodes.order,
        dimension=nodes.dimension,
    )


def read_mesh(source: Any, *, location: Location | None = None) -> Mesh:
    """Reads coordinates, edges and fields of a mesh.

    Args:
        source: NetCDF file or Zarr folder with a UGRID mesh or a HEALPix sphere; or a `meshio.Mesh`, as `meshio.read`
            returns it for VTK, gmsh and many other formats.
        location: What the nodes of the graph are: the points of the mesh (`node`) or its faces (`face`). By default
            that of the fields in the file, or the points where there are none.

    Raises:
        DataError: If the file is no mesh, has no connectivity, or its connectivity names points that do not exist.

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
    try:
        if path.suffix.lower() in FIELD_SUFFIXES:
            return _read_field_file(path, location)
        known = ", ".join(FIELD_SUFFIXES)
        raise DataError(f"meshes are read from {known}, got {path.suffix!r}: give what meshio.read returns for it")
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except (ValueError, IndexError) as error:
        raise DataError(f"{path}: it cannot be read, the file is damaged or incomplete ({error})") from error


def as_row_of_nodes(dataset: xr.Dataset, location: Location | None = None) -> xr.Dataset:
    """The fields of a data set on the nodes of its mesh as a grid of one row, which carries the nodes along."""
    nodes = read_nodes(dataset, location)
    names = fields_on(dataset, nodes.dimension)
    if not names:
        raise DataError(f"no floating variable has the dimension {nodes.dimension!r} of the nodes")
    nodes = replace(nodes, variables=_mesh_variables(dataset, nodes))
    chosen = dataset[names]
    # Latitudes and longitudes of single nodes are no axes of a grid.
    apart = [name for name in chosen.coords if nodes.dimension in chosen[name].dims or name in nodes.variables]
    row = chosen.drop_vars(apart).transpose(..., nodes.dimension).rename({nodes.dimension: "ni"})
    row = row.map(lambda field: field.expand_dims("nj", axis=-2), keep_attrs=True)
    return row.assign_coords({NODES: ((), 0, {"nodes": nodes})})


def with_mesh(row: xr.Dataset, dimension: str, variables: Mapping[str, Any]) -> xr.Dataset:
    """Fields on a row of nodes in the layout of the file that they come from, with the variables of its mesh."""
    import xarray

    dataset = row.squeeze("nj", drop=True).rename({"ni": dimension}) if "ni" in row.dims else row
    for name, (dims, values, attributes) in variables.items():
        if "_FillValue" in attributes:
            attributes = attributes | {"_FillValue": values.dtype.type(attributes["_FillValue"])}
        # Places are coordinates; connectivity is not, or each variable would name it as one.
        if values.dtype.kind == "f" or dims == (dimension,):
            dataset = dataset.assign_coords({name: (dims, values, attributes)})
        else:
            dataset = dataset.assign({name: xarray.Variable(dims, values, attributes, {"coordinates": None})})
    return dataset


def _mesh_variables(dataset: Any, nodes: Nodes) -> dict[str, Any]:
    """The variables of the topology or the grid mapping, and the coordinates of the nodes."""
    if nodes.topology is not None:
        names = topology_variables(dataset, nodes.topology)
    else:
        names = [str(name) for name, variable in dataset.variables.items() if has_healpix(variable)]
    names += [
        str(name)
        for name, variable in dataset.variables.items()
        if variable.dims == (nodes.dimension,)
        and (name in dataset.coords or variable.attrs.get("standard_name") in ("latitude", "longitude"))
    ]
    found = {}
    for name in dict.fromkeys(names):
        found[name] = variable = dataset.variables[name].copy(deep=False)
        stored, fill = variable.encoding.get("dtype"), variable.encoding.get("_FillValue")
        if variable.dtype.kind == "f" and stored is not None and stored.kind in "iu" and fill is not None:
            # Integers with a fill value are integers again.
            variable.data = np.where(np.isnan(variable.values), fill, variable.values).astype(stored)
            variable.attrs["_FillValue"] = stored.type(fill)
    return found
