"""Meshes in the formats that meshio reads: vtk, vtu, gmsh, stl, ply and others."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch

from smoe.confined_process import ConfinedError, ConfinedReader
from smoe.errors import DataError, naming_extras
from smoe.integrity.hdf5_links import HDF5_SIGNATURE, check_hdf5_links
from smoe.meshes.mesh import Mesh, edges_of_neighbours, edges_of_sides, sides_of_faces

# Corners of the sides of a cell, by meshio's name of it.
_SOLID_SIDES = {
    "tetra": [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)],
    "pyramid": [(0, 1), (1, 2), (2, 3), (3, 0), (0, 4), (1, 4), (2, 4), (3, 4)],
    "wedge": [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3), (0, 3), (1, 4), (2, 5)],
    "hexahedron": [(0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (5, 6), (6, 7), (7, 4), (0, 4), (1, 5), (2, 6), (3, 7)],
}
_FLAT = ("triangle", "quad", "polygon")
_XDMF = (".xdmf", ".xmf")


class MeshioFile:
    """A file, read by meshio in a process of its own: on some damaged files it does not come to an end.

    Args:
        path: The file.

    Attributes:
        mesh: The mesh.
    """

    def __init__(self, path: Path) -> None:
        import meshio

        _check_is_one_file(path)
        said = io.StringIO()
        # meshio prints what it finds wrong, and ends the process where none of its readers knows a file.
        with warnings.catch_warnings(), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            # meshio takes the first bytes of a text for a number and multiplies it.
            warnings.filterwarnings("ignore", message="overflow encountered", category=RuntimeWarning)
            try:
                self.mesh = meshio.read(path)
            except SystemExit as error:
                reason = " ".join(said.getvalue().split()) or "it is of another format, or damaged"
                raise DataError(f"meshio cannot read it ({reason})") from error


def _check_is_one_file(path: Path) -> None:
    """Refuses a mesh whose values are in other files, which it can name anywhere.

    Raises:
        DataError: With what names them.
    """
    with path.open("rb") as file:
        if file.read(len(HDF5_SIGNATURE)) == HDF5_SIGNATURE:
            check_hdf5_links(path)
    if path.suffix.lower() in _XDMF:
        for _, element in ElementTree.iterparse(path):
            form = element.get("Format", "XML")
            if element.tag.endswith("DataItem") and form.upper() != "XML":
                named = (element.text or "").strip()[:100]
                raise DataError(
                    f"its values are in another file, {named!r} (Format {form[:20]!r}), which is not opened; convert "
                    "it to vtu"
                )


def read_meshio_file(path: Path, location: str | None) -> Mesh:
    """Reads a mesh by meshio."""
    with naming_extras(f"reading {path.suffix or path.name}"):
        import meshio  # noqa: F401
    try:
        mesh = ConfinedReader(path, f"{__name__}:MeshioFile", path).get("mesh")
    except DataError as error:
        # Callers begin their messages with the path.
        raise DataError(str(error).removeprefix(str(path)).lstrip(": ")) from error
    except ConfinedError as error:
        raise DataError(f"meshio cannot read it ({' '.join(str(error).split())})") from error
    points = np.asarray(mesh.points, dtype=np.float64)
    points = np.pad(points, ((0, 0), (0, 3 - points.shape[1])))
    flat = [_checked(block, len(points)) for block in mesh.cells if block.type in _FLAT]
    if location == "face":
        if not flat:
            raise DataError(f"has no triangles, quads or polygons, but location is 'face'; cells: {_kinds(mesh)}")
        return _on_faces(mesh, points, flat)
    sides = _sides(mesh, flat, len(points))
    if not len(sides):
        raise DataError(f"has no connectivity: its cells are {_kinds(mesh)}")
    is_surface = (
        len(flat) == 1 and flat[0].shape[1] == 3 and all(block.type in (*_FLAT, "vertex") for block in mesh.cells)
    )
    return Mesh(
        torch.from_numpy(points),
        torch.from_numpy(edges_of_sides(sides)),
        {name: _field(values) for name, values in mesh.point_data.items() if _is_field(name, [values])},
        torch.from_numpy(flat[0]) if is_surface else None,
    )


def _on_faces(mesh: Any, points: np.ndarray, flat: list[np.ndarray]) -> Mesh:
    most = max(block.shape[1] for block in flat)
    faces = np.concatenate([np.pad(block, ((0, 0), (0, most - block.shape[1])), constant_values=-1) for block in flat])
    weight = (faces >= 0)[..., None]
    centres = (points[faces] * weight).sum(axis=1) / weight.sum(axis=1)
    places = [number for number, block in enumerate(mesh.cells) if block.type in _FLAT]
    fields = {
        name: _field(np.concatenate([np.asarray(blocks[place]) for place in places]))
        for name, blocks in mesh.cell_data.items()
        if _is_field(name, [blocks[place] for place in places])
    }
    return Mesh(torch.from_numpy(centres), torch.from_numpy(edges_of_neighbours(faces)), fields)


def _sides(mesh: Any, flat: list[np.ndarray], num_points: int) -> np.ndarray:
    sides = [sides_of_faces(block)[0] for block in flat]
    for block in mesh.cells:
        if block.type == "line":
            sides.append(_checked(block, num_points))
        elif block.type in _SOLID_SIDES:
            cells = _checked(block, num_points)
            sides += [cells[:, list(pair)] for pair in _SOLID_SIDES[block.type]]
        elif block.type not in (*_FLAT, "vertex"):
            raise DataError(f"has cells of type {block.type!r}, whose sides are not known here; convert them first")
    return np.concatenate(sides) if sides else np.zeros((0, 2), dtype=np.int64)


def _checked(block: Any, num_points: int) -> np.ndarray:
    cells = np.asarray(block.data, dtype=np.int64)
    low, high = cells.min(initial=num_points), cells.max(initial=-1)
    if low < 0 or high >= num_points:
        raise DataError(
            f"its {block.type} cells name the points {low} to {high}, but there are {num_points}, numbered from 0"
        )
    return cells


def _is_field(name: str, blocks: Sequence[np.ndarray]) -> bool:
    """Whether values are numbers and no tags of the format, such as `gmsh:dim_tags`."""
    return ":" not in name and all(np.asarray(block).dtype.kind in "fiu" for block in blocks)


def _field(values: np.ndarray) -> torch.Tensor:
    """A field with its nodes last; vectors have theirs before."""
    return torch.from_numpy(np.moveaxis(np.asarray(values, dtype=np.float32), 0, -1).copy())


def _kinds(mesh: Any) -> str:
    return ", ".join(sorted({block.type for block in mesh.cells})) or "none"
