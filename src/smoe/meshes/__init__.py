"""Meshes from files: UGRID and HEALPix NetCDF or Zarr, and what meshio reads."""

from smoe.meshes.mesh import Mesh
from smoe.meshes.mesh_net import MeshNet
from smoe.meshes.read_mesh import read_mesh
from smoe.meshes.row_of_nodes import open_mesh_fields

__all__ = ["Mesh", "MeshNet", "open_mesh_fields", "read_mesh"]
