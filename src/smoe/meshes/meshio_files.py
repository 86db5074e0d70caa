"""Meshes in formats that meshio reads."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from smoe.errors import DataError, naming_extras
from smoe.meshes.mesh import Mesh, edges_of_neighbours, edges_of_sides, sides_of_faces

# Corners of the sides of a cell, by meshio's name of it.
_SOLID_SIDES = {
    "tetra": [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)],
    "pyramid": [(0, 1), (1, 2), (2, 3), (3, 0), (0, 4), (1, 4), (2, 4), (3, 4)],
    "wedge": [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3), (0, 3), (1, 4), (2, 5)],
    "hexahedron": [(0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (5, 6), (6, 7), (7, 4), (0, 4), (1, 5), (2, 6), (3, 7)],
}
_FLAT = ("triangle", "quad", "polygon")


def _read(path: Path) -> Any:
    if not path.is_file():
        raise DataError("is not a regular file, but a pipe, device or folder")
    with naming_extras(f"reading {path.suffix}"):
        import meshio
    if path.suffix.lower() == ".ply" and b"end_header" not in path.read_bytes():
        # meshio would read beyond the end of the file for ever.
        raise DataError("is damaged or incomplete: its header has no end; copy or download it again")
    said = io.StringIO()
    # meshio prints what it finds wrong, and ends the process where none of its readers knows a file.
    with warnings.catch_warnings(), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        # meshio takes the first bytes of a text for a number and multiplies it.
        warnings.filterwarnings("ignore", message="overflow encountered", category=RuntimeWarning)
        try:
            # Not by the reader of Ansys, which has the same suffix and waits for what was cut off.
            return meshio.read(path, "gmsh" if path.suffix.lower() == ".msh" else None)
        except SystemExit as error:
            reason = " ".join(said.getvalue().split()) or "it is of another format, or damaged"
            raise DataError(f"meshio cannot read it ({reason})") from error
        except Exception as error:  # each format has errors of its own
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise DataError(f"meshio cannot read it, the file is damaged or incomplete ({reason})") from error


def read_meshio_file(path: Path, location: str | None) -> Mesh:
    """Reads a mesh by meshio."""
    mesh = _read(path)
    points = np.asarray(mesh.points, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] > 3:
        raise DataError(f"its points have the shape {points.shape}, expected one to three coordinates each")
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
