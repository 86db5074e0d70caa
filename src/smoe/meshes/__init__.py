"""Meshes from files: UGRID and HEALPix NetCDF or Zarr, and what meshio reads."""

from smoe.meshes._mesh import Mesh
from smoe.meshes._mesh_files import read_mesh
from smoe.meshes._mesh_net import MeshNet
from smoe.meshes._node_fields import open_mesh_fields

__all__ = ["Mesh", "MeshNet", "open_mesh_fields", "read_mesh"]
