"""Meshes, their fields as a grid of one row, and nets on them."""

# Names beside those of `__all__` are for other rooms of smoe.
# ruff: noqa: F401
from smoe.meshes._mesh import NODES, Mesh, mesh_arrays, mesh_from_files, mesh_json
from smoe.meshes._mesh_net import MeshNet, SummedMeshLayer
from smoe.meshes._node_rows import make_mesh, with_mesh

__all__ = ["Mesh", "MeshNet"]
