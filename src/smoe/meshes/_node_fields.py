"""Fields on a mesh as a grid of one row, which `GridRegressor` reads: (time, level, nj, ni) with nj of size 1.

A row of nodes carries its mesh along. The coordinates `node_x`, `node_y` and `node_z` are the places of the nodes, and
the variables of the topology keep their names, on dimensions that begin with `mesh_`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smoe.errors import DataError
from smoe.meshes._mesh import Mesh
from smoe.meshes._mesh_files import FIELD_SUFFIXES, Location, make_mesh, open_mesh_dataset
from smoe.meshes._mesh_layouts import (
    DESCRIPTION,
    PLACES,
    ROW_COORDINATES,
    Nodes,
    fields_on,
    has_healpix,
    is_row_of_nodes,
    read_nodes,
    topology_variables,
)
from smoe.ops._healpix import HEALPixOrder

if TYPE_CHECKING:
    import xarray as xr

_PREFIX = "mesh_"


def open_mesh_fields(path: str | Path, *, location: Location | None = None) -> tuple[Mesh, xr.Dataset]:
    """Opens the fields of a UGRID or HEALPix file without reading them.

    Args:
        path: NetCDF file or Zarr folder.
        location: As for `smoe.read_mesh`.

    Returns:
        The mesh without its fields, and the fields with their nodes as the columns of one row: dimensions `nj` of size
        1 and `ni`, the nodes in the order of the mesh.

    Raises:
        DataError: If the file is no mesh, or has no fields on the nodes.

    Example:
        >>> from smoe.meshes import MeshNet, open_mesh_fields
        >>> mesh, fields = open_mesh_fields("ocean.nc")
        >>> net = MeshNet(mesh, in_channels=1, out_channels=1)
        >>> smoe.GridRegressor(net).fit(fields[["sst"]], fields[["sst"]])
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no mesh file {path}")
    if path.suffix.lower() not in FIELD_SUFFIXES:
        raise DataError(f"{path}: fields in time are read from {', '.join(FIELD_SUFFIXES)}, got {path.suffix!r}")
    try:
        fields = as_row_of_nodes(open_mesh_dataset(path), location)
    except (DataError, OSError, ValueError) as error:
        raise DataError(f"{path}: {error}") from error
    mesh = mesh_of_row(fields)
    assert mesh is not None
    return mesh, fields


def as_row_of_nodes(dataset: xr.Dataset, location: Location | None = None) -> xr.Dataset:
    """The fields of a data set on the nodes of its mesh as a grid of one row, with the mesh in its coordinates."""
    nodes = read_nodes(dataset, location)
    names = fields_on(dataset, nodes.dimension)
    if not names:
        raise DataError(f"no floating variable has the dimension {nodes.dimension!r} of the nodes")
    chosen = dataset[names]
    # Latitudes and longitudes of single nodes are no axes of a grid.
    chosen = chosen.drop_vars([name for name in chosen.coords if nodes.dimension in chosen[name].dims])
    row = chosen.transpose(..., nodes.dimension).rename({nodes.dimension: "ni"})
    row = row.map(lambda field: field.expand_dims("nj", axis=-2), keep_attrs=True)
    kept = _mesh_variables(dataset, nodes)
    coordinates: dict[str, Any] = {name: _on_own_dimensions(variable) for name, variable in kept.items()}
    coordinates |= {name: (("nj", "ni"), part[None]) for name, part in zip(PLACES, nodes.places.T, strict=True)}
    coordinates[DESCRIPTION] = ((), 0, _describe(nodes) | {"variables": " ".join(kept)})
    return row.drop_vars(set(coordinates) & set(map(str, row.coords))).assign_coords(coordinates)


def mesh_of_row(row: Any) -> Mesh | None:
    """The mesh of a row of nodes; None for other data sets, and for rows that lost their connectivity."""
    import xarray

    if not is_row_of_nodes(row):
        return None
    description = row[DESCRIPTION].attrs
    if "nside" in description:
        places = np.concatenate([row[name].values for name in PLACES]).T
        order: HEALPixOrder = "nested" if description["pixel_order"] == "nested" else "ring"
        return make_mesh(Nodes(description["dimension"], places, nside=int(description["nside"]), order=order))
    variables = restored_variables(row)
    if set(variables) != set(description["variables"].split()):
        return None
    return make_mesh(read_nodes(xarray.Dataset(variables), description["location"]))


def restored_variables(row: Any) -> dict[str, Any]:
    """Variables of the mesh of a row of nodes, with the dimensions that they have in the file."""
    found = {}
    for name in row[DESCRIPTION].attrs["variables"].split():
        if name in row.coords:
            variable = row[name].variable.copy()
            variable.dims = tuple(str(dim).removeprefix(_PREFIX) for dim in variable.dims)
            found[name] = variable
    return found


def with_mesh_of(row: xr.Dataset, other: xr.Dataset) -> xr.Dataset:
    """A row of nodes with the mesh of another one in its coordinates; data sets on other grids as they are."""
    if not is_row_of_nodes(row):
        return row
    alone, there = ({*ROW_COORDINATES, *restored_variables(each)} for each in (row, other))
    return row.drop_vars(alone, errors="ignore").assign_coords({name: other[name] for name in there})


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


def _on_own_dimensions(variable: Any) -> Any:
    """A variable of the mesh on dimensions of other names; integers with a fill value are integers again."""
    import xarray

    values, attributes = variable.values, dict(variable.attrs)
    stored, fill = variable.encoding.get("dtype"), variable.encoding.get("_FillValue")
    if values.dtype.kind == "f" and stored is not None and stored.kind in "iu" and fill is not None:
        values = np.where(np.isnan(values), fill, values).astype(stored)
        attributes["_FillValue"] = values.dtype.type(fill)
    return xarray.Variable([f"{_PREFIX}{dim}" for dim in variable.dims], values, attributes)


def _mesh_variables(dataset: Any, nodes: Nodes) -> dict[str, Any]:
    """Variables that are no fields: those of the topology or the grid mapping, and coordinates of the nodes."""
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
    return {name: dataset.variables[name] for name in dict.fromkeys(names)}


def _describe(nodes: Nodes) -> dict[str, Any]:
    if nodes.nside is not None:
        text = f"HEALPix sphere of nside {nodes.nside} in {nodes.order} order"
        return {"description": text, "dimension": nodes.dimension, "nside": nodes.nside, "pixel_order": nodes.order}
    location, word = ("face", "faces") if nodes.is_on_faces else ("node", "points")
    text = f"mesh of {len(nodes.places)} {word}"
    return {"description": text, "dimension": nodes.dimension, "location": location}
