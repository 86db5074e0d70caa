"""Reads a mesh from a file, by what the file is."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from smoe.errors import DataError
from smoe.meshes.mesh import Mesh

Location = Literal["node", "face"]
FIELD_SUFFIXES = (".nc", ".nc4", ".zarr")
# Formats of meshio that are one file, and whose readers come to an end: Abaqus, tetgen, XDMF and others open files that
# they name, and that of off waits for what was cut off.
MESHIO_SUFFIXES = (".vtu", ".vtk", ".msh", ".ply", ".stl", ".obj")


def read_mesh(path: str | Path, *, location: Location | None = None) -> Mesh:
    """Reads coordinates, edges and fields of a mesh.

    NetCDF and Zarr may hold a UGRID mesh or a HEALPix sphere and are read by xarray; vtu, vtk, msh (gmsh), ply, stl
    and obj are read by meshio.

    Args:
        path: File, or Zarr folder.
        location: What the nodes of the graph are: the points of the mesh (`node`) or its faces (`face`). By default
            that of the fields in the file, or the points where there are none.

    Raises:
        DataError: If the file is no mesh, has no connectivity, or its connectivity names points that do not exist.

    Example:
        >>> mesh = smoe.read_mesh("ocean.nc")
        >>> layer = smoe.GraphMoE(1, 3, 1, num_nodes=mesh.num_nodes, coordinates=mesh.coordinates)
        >>> layer(mesh.fields["sst"][:, :, None], mesh.edge_index)
    """
    path = Path(path)
    if location is not None and location not in get_args(Location):
        raise ValueError(f"location must be one of {', '.join(get_args(Location))}, got {location!r}")
    if not path.exists():
        raise FileNotFoundError(f"there is no mesh file {path}")
    try:
        if path.suffix.lower() in FIELD_SUFFIXES:
            from smoe.meshes.field_files import read_field_file

            return read_field_file(path, location)
        if path.suffix.lower() not in MESHIO_SUFFIXES:
            known = ", ".join((*FIELD_SUFFIXES, *MESHIO_SUFFIXES))
            raise DataError(f"meshes are read from {known}, got {path.suffix!r}: convert it to .vtu")
        from smoe.meshes.meshio_files import read_meshio_file

        return read_meshio_file(path, location)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except (ValueError, IndexError) as error:
        raise DataError(f"{path}: it cannot be read, the file is damaged or incomplete ({error})") from error
