"""A mesh without its fields as arrays and plain words, as files of models keep it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from smoe.meshes.mesh import Mesh


def mesh_arrays(mesh: Mesh) -> dict[str, np.ndarray]:
    """Coordinates, edges and triangles by names that begin with `mesh.`."""
    arrays = {"mesh.coordinates": mesh.coordinates.numpy(), "mesh.edge_index": mesh.edge_index.numpy()}
    return arrays if mesh.triangles is None else arrays | {"mesh.triangles": mesh.triangles.numpy()}


def mesh_words(mesh: Mesh) -> dict[str, Any]:
    """What JSON keeps of a mesh."""
    return {"nside": mesh.nside, "pixel_order": mesh.pixel_order, "dimension": mesh.dimension}


def mesh_from_files(words: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Mesh:
    """The inverse of `mesh_words` and `mesh_arrays`."""
    triangles = arrays.get("mesh.triangles")
    return Mesh(
        torch.from_numpy(arrays["mesh.coordinates"]),
        torch.from_numpy(arrays["mesh.edge_index"]),
        triangles=None if triangles is None else torch.from_numpy(triangles),
        nside=words["nside"],
        pixel_order=words["pixel_order"],
        dimension=words["dimension"],
    )
