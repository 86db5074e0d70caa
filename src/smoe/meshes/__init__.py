"""Meshes from files: UGRID and HEALPix NetCDF or Zarr, and what meshio reads."""

# Names beside those of `__all__` are for other rooms of smoe.
# ruff: noqa: F401
from smoe.meshes._mesh import Mesh, mesh_arrays, mesh_from_files, mesh_words
from smoe.meshes._mesh_files import read_mesh
from smoe.meshes._mesh_layouts import DESCRIPTION, ROW_COORDINATES, is_row_of_nodes
from smoe.meshes._mesh_net import MeshLayers, MeshNet, SummedMeshLayer
from smoe.meshes._node_fields import mesh_of_row, open_mesh_fields, restored_variables, with_mesh

__all__ = ["Mesh", "MeshNet", "open_mesh_fields", "read_mesh"]
