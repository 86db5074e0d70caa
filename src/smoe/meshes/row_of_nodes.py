"""Fields on a mesh as a grid of one row, which `GridRegressor` reads: (time, level, nj, ni) with nj of size 1."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from smoe.errors import DataError
from smoe.meshes.field_files import fields_on, read_field_file
from smoe.meshes.mesh import Mesh
from smoe.meshes.read_mesh import FIELD_SUFFIXES, Location

if TYPE_CHECKING:
    import xarray as xr


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
        mesh = read_field_file(path, location, with_fields=False)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    import xarray

    dataset = xarray.open_dataset(path, engine="zarr" if path.suffix.lower() == ".zarr" else None)
    names = fields_on(dataset, mesh.dimension)
    if not names:
        raise DataError(f"{path}: no floating variable has the dimension {mesh.dimension!r} of the nodes")
    chosen = dataset[names]
    # Latitudes and longitudes of single nodes are no axes of a grid.
    chosen = chosen.drop_vars([name for name in chosen.coords if mesh.dimension in chosen[name].dims])
    fields = chosen.transpose(..., mesh.dimension).rename({mesh.dimension: "ni"})
    return mesh, fields.map(lambda field: field.expand_dims("nj", axis=-2), keep_attrs=True)
