"""Meshes from files: UGRID and HEALPix NetCDF or Zarr, and what meshio reads."""

from smoe.meshes.mesh import Mesh
from smoe.meshes.read_mesh import read_mesh

__all__ = ["Mesh", "read_mesh"]
