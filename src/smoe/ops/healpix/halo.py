"""Faces of a HEALPix sphere with a border of their neighbours' pixels, so that a convolution crosses their edges."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import torch

# By where a pixel left its face (3 * row step + column step + 4, a step being -1, 0 or 1): the face that lies there, -1
# where three faces meet and none does; and how its axes lie: 1 reverses columns, 2 reverses rows, 4 exchanges them.
_NEIGHBOUR = np.array(
    [
        [8, 9, 10, 11, -1, -1, -1, -1, 10, 11, 8, 9],
        [5, 6, 7, 4, 8, 9, 10, 11, 9, 10, 11, 8],
        [-1, -1, -1, -1, 5, 6, 7, 4, -1, -1, -1, -1],
        [4, 5, 6, 7, 11, 8, 9, 10, 11, 8, 9, 10],
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
        [1, 2, 3, 0, 0, 1, 2, 3, 5, 6, 7, 4],
        [-1, -1, -1, -1, 7, 4, 5, 6, -1, -1, -1, -1],
        [3, 0, 1, 2, 3, 0, 1, 2, 4, 5, 6, 7],
        [2, 3, 0, 1, -1, -1, -1, -1, 0, 1, 2, 3],
    ]
)
_TURN = np.array([[0, 0, 3], [0, 0, 6], [0, 0, 0], [0, 0, 5], [0, 0, 0], [5, 0, 0], [0, 0, 0], [6, 0, 0], [3, 0, 0]])


class FaceHalo(NamedTuple):
    """Where the border of padded faces comes from.

    Attributes:
        places: Pixels of the border in the padded faces, flat.
        sources: The two pixels of the faces, flat, whose mean each of them is `(2, ...)`; mostly the same one twice.
    """

    places: torch.Tensor
    sources: torch.Tensor

    @classmethod
    def of(cls, nside: int, width: int) -> FaceHalo:
        """The border of a size; tables are kept."""
        return _make_halo(nside, width)


def _cross(face: np.ndarray, y: np.ndarray, x: np.ndarray, nside: int) -> np.ndarray:
    """Flat pixel for rows and columns that may lie beyond a face; -1 where three faces meet."""
    row_step = (y >= nside).astype(int) - (y < 0).astype(int)
    column_step = (x >= nside).astype(int) - (x < 0).astype(int)
    x, y = x - column_step * nside, y - row_step * nside
    place = 4 + column_step + 3 * row_step
    other = _NEIGHBOUR[place, face]
    turn = _TURN[place, face // 4]
    x = np.where(turn & 1, nside - 1 - x, x)
    y = np.where(turn & 2, nside - 1 - y, y)
    x, y = np.where(turn & 4, y, x), np.where(turn & 4, x, y)
    return np.where(other < 0, -1, (other * nside + y) * nside + x)


@functools.lru_cache(maxsize=8)
def _make_halo(nside: int, width: int) -> FaceHalo:
    if not 0 <= width <= nside:
        raise ValueError(f"the border of a face must be at most its side of {nside} pixels wide, got {width}")
    size = nside + 2 * width
    face, row, column = np.meshgrid(np.arange(12), np.arange(size), np.arange(size), indexing="ij")
    y, x = row - width, column - width
    is_border = (x < 0) | (x >= nside) | (y < 0) | (y >= nside)
    face, y, x, row, column = (part[is_border] for part in (face, y, x, row, column))
    first = _cross(face, y, x, nside)
    # Where three faces meet, the pixel is the mean of the two that lie beyond either edge, as far from the corner.
    inside_y, inside_x = (_mirror(part, nside) for part in (y, x))
    by_rows, by_columns = _cross(face, y, inside_x, nside), _cross(face, inside_y, x, nside)
    sources = np.where(first < 0, np.stack([by_rows, by_columns]), first)
    places = torch.from_numpy((face * size + row) * size + column)
    return FaceHalo(places, torch.from_numpy(sources).contiguous())


def _mirror(place: np.ndarray, nside: int) -> np.ndarray:
    """The place inside the face that is as far from its edge as the given one is outside."""
    return np.where(place < 0, -1 - place, np.where(place >= nside, 2 * nside - 1 - place, place))


def pad_faces(faces: torch.Tensor, width: int, halo: FaceHalo | None = None) -> torch.Tensor:
    """Pads each face by the pixels of its neighbours; gradients go back to these.

    Eight corners of faces touch no other face: there, the border is the mean of the pixels beyond the two edges.

    Args:
        faces: `(B, C, 12, n, n)`, floating.
        width: Width of the border, at most n.
        halo: Where the border comes from, on the device of the faces; made if None.

    Returns:
        `(B, C, 12, n + 2 * width, n + 2 * width)`.
    """
    if faces.ndim != 5 or faces.shape[2] != 12 or faces.shape[3] != faces.shape[4]:
        raise ValueError(f"faces must be (B, C, 12, n, n), got shape {tuple(faces.shape)}")
    if width == 0:
        return faces
    if halo is None:
        made = FaceHalo.of(faces.shape[3], width)
        halo = FaceHalo(made.places.to(faces.device), made.sources.to(faces.device))
    if torch.compiler.is_compiling():
        return _pad(faces, halo.places, halo.sources, width)
    return _PaddedFaces.apply(faces, halo.places, halo.sources, width)  # type: ignore[return-value]


def _pad(faces: torch.Tensor, places: torch.Tensor, sources: torch.Tensor, width: int) -> torch.Tensor:
    B, C, _, n, _ = faces.shape
    size = n + 2 * width
    padded = faces.new_empty(B, C, 12, size, size)
    padded[..., width:-width, width:-width] = faces
    flat = faces.flatten(2)
    # Halves first: a sum of two large half-precision numbers could overflow.
    border = flat.index_select(2, sources[0]) * 0.5 + flat.index_select(2, sources[1]) * 0.5
    padded.view(B, C, -1)[:, :, places] = border
    return padded


class _PaddedFaces(torch.autograd.Function):
    @staticmethod
    def forward(ctx, faces, places, sources, width):
        ctx.save_for_backward(places, sources)
        ctx.width = width
        return _pad(faces, places, sources, width)

    @staticmethod
    def backward(ctx, *grad_outputs):
        (error,) = grad_outputs
        places, sources = ctx.saved_tensors
        width = ctx.width
        gradient = error[..., width:-width, width:-width].contiguous()
        border = error.flatten(2).index_select(2, places) * 0.5
        flat = gradient.flatten(2)
        for source in sources:
            flat.scatter_add_(2, source.expand_as(border), border)
        return flat.view_as(gradient), None, None, None
