"""Meshes in NetCDF and Zarr: UGRID topologies and HEALPix spheres, read by xarray.

xarray alone suffices: uxarray would bring numba, polars, pyarrow and shapely for what is a table of corners here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from smoe._integrity import check_netcdf_file, check_zarr_coordinates
from smoe.errors import DataError, naming_extras
from smoe.meshes.healpix_files import HealpixSphere, find_healpix, read_healpix
from smoe.meshes.mesh import Mesh
from smoe.meshes.node_fields import fields_on
from smoe.meshes.ugrid import UgridTopology, find_topology, read_topology


def read_field_file(path: Path, location: str | None) -> Mesh:
    """Reads a UGRID mesh or a HEALPix sphere with its fields."""
    with naming_extras("reading a mesh from NetCDF or Zarr"):
        import xarray
    check_field_file(path)
    # Connectivity is decoded by hand: xarray would turn integers with a fill value into floats.
    options: dict[str, Any] = {}
    if path.suffix.lower() == ".zarr":
        options = {"engine": "zarr", "consolidated": (path / ".zmetadata").exists() or None}
        if options["consolidated"] is None and (path / ".zgroup").exists():
            options["consolidated"] = False
    try:
        raw = xarray.open_dataset(path, decode_cf=False, **options)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"cannot be opened as NetCDF or Zarr ({' '.join(str(error).split())})") from error
    with raw:
        fields = xarray.decode_cf(raw, decode_coords=False, decode_times=False)
        nodes = read_nodes(raw, fields, location)
        return make_mesh(nodes, _read_fields(fields, nodes.dimension))


def check_field_file(path: Path) -> None:
    """Refuses a NetCDF file or Zarr store that is damaged or incomplete.

    Raises:
        DataError: With the reason.
    """
    try:
        if path.is_dir():
            check_zarr_coordinates(path)
        else:
            check_netcdf_file(path)
    except DataError as error:
        # Callers begin their messages with the path.
        raise DataError(str(error).removeprefix(str(path)).lstrip(": ")) from error
    except Exception as error:  # each library has errors of its own
        raise DataError(f"cannot be opened as NetCDF or Zarr ({' '.join(str(error).split())})") from error


def is_mesh(dataset: Any) -> bool:
    """Whether a data set has a UGRID topology or a HEALPix grid mapping."""
    return find_topology(dataset) is not None or find_healpix(dataset) is not None


def read_nodes(raw: Any, fields: Any, location: str | None) -> UgridTopology | HealpixSphere:
    """Finds the mesh of a data set and reads where its nodes are.

    Args:
        raw: Data set with the connectivity, decoded or not.
        fields: Decoded data set.
        location: `node` or `face` of a UGRID mesh; None for where the fields are.

    Raises:
        DataError: If there is no mesh, or it is incomplete.
    """
    topology = find_topology(raw)
    if topology is not None:
        return read_topology(raw, fields, topology, location)
    mapping = find_healpix(raw)
    if mapping is not None:
        return read_healpix(fields, mapping)
    raise DataError(
        "has neither a UGRID topology (a variable with cf_role='mesh_topology') nor a HEALPix grid mapping "
        "(grid_mapping_name='healpix'): a mesh without connectivity cannot be read"
    )


def make_mesh(nodes: UgridTopology | HealpixSphere, fields: dict[str, torch.Tensor] | None = None) -> Mesh:
    """A mesh of nodes with their edges."""
    triangles = nodes.triangles() if isinstance(nodes, UgridTopology) else None
    is_sphere = isinstance(nodes, HealpixSphere)
    return Mesh(
        torch.from_numpy(np.ascontiguousarray(nodes.places, dtype=np.float64)),
        torch.from_numpy(nodes.edges().astype(np.int64)),
        fields or {},
        None if triangles is None else torch.from_numpy(triangles.astype(np.int64)),
        nside=nodes.nside if is_sphere else None,
        pixel_order=nodes.order if is_sphere else None,
        dimension=nodes.dimension,
    )


def _read_fields(fields: Any, dimension: str) -> dict[str, torch.Tensor]:
    return {
        name: torch.from_numpy(np.ascontiguousarray(fields[name].transpose(..., dimension).values, dtype=np.float32))
        for name in fields_on(fields, dimension)
    }
