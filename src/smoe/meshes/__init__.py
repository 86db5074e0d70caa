"""Meshes from UGRID and HEALPix files, and from what meshio has read; nets on them."""

# Names beside those of `__all__` are for other rooms of smoe.
# ruff: noqa: F401
from smoe.meshes._mesh import NODES, Mesh, mesh_arrays, mesh_from_files, mesh_words
from smoe.meshes._mesh_files import make_mesh, read_mesh, with_mesh
from smoe.meshes._mesh_net import MeshNet, SummedMeshLayer

__all__ = ["Mesh", "MeshNet", "read_mesh"]
