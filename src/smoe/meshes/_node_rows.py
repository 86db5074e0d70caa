"""The fields of a mesh as a grid of one row.

A row of nodes, which `GridRegressor` reads, has the dimensions (time, level, nj, ni) with nj of size 1. The attribute
of one of its coordinates holds the nodes, with the variables of the topology as the file has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from smoe.errors import DataError
from smoe.meshes._mesh import NODES, Mesh, Nodes, fields_on, has_healpix, read_nodes, topology_variables

if TYPE_CHECKING:
    import xarray as xr

Location = Literal["node", "face"]


def make_mesh(nodes: Nodes, fields: dict[str, torch.Tensor] | None = None) -> Mesh:
    return Mesh(
        torch.from_numpy(np.ascontiguousarray(nodes.places, dtype=np.float64)),
        torch.from_numpy(nodes.edges().astype(np.int64)),
        fields or {},
        nside=nodes.nside,
        pixel_order=nodes.order,
        dimension=nodes.dimension,
    )


def as_row_of_nodes(dataset: xr.Dataset, location: Location | None = None) -> xr.Dataset:
    """The fields of a data set on the nodes of its mesh as a grid of one row, which carries the nodes along."""
    nodes = read_nodes(dataset, location)
    names = fields_on(dataset, nodes.dimension)
    if not names:
        raise DataError(f"no floating variable has the dimension {nodes.dimension!r} of the nodes")
    nodes = replace(nodes, variables=_mesh_variables(dataset, nodes))
    chosen = dataset[names]
    # Latitudes and longitudes of single nodes are not axes of a grid.
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
