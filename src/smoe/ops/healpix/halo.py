"""Faces of a HEALPix sphere with a border of their neighbours' pixels, so that a convolution crosses their edges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from smoe.ops.registration import has_transforms

# By where a pixel left its face (3 * row step + column step + 4, a step being -1, 0 or 1): the face that lies there, -1
# where three faces meet and none does.
_NEIGHBOUR = (
    (8, 9, 10, 11, -1, -1, -1, -1, 10, 11, 8, 9),
    (5, 6, 7, 4, 8, 9, 10, 11, 9, 10, 11, 8),
    (-1, -1, -1, -1, 5, 6, 7, 4, -1, -1, -1, -1),
    (4, 5, 6, 7, 11, 8, 9, 10, 11, 8, 9, 10),
    (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11),
    (1, 2, 3, 0, 0, 1, 2, 3, 5, 6, 7, 4),
    (-1, -1, -1, -1, 7, 4, 5, 6, -1, -1, -1, -1),
    (3, 0, 1, 2, 3, 0, 1, 2, 4, 5, 6, 7),
    (2, 3, 0, 1, -1, -1, -1, -1, 0, 1, 2, 3),
)
# How the axes of that face lie, by the row of faces (north, equator, south) that the pixel left: 1 reverses columns, 2
# reverses rows, 4 exchanges both.
_TURN = ((0, 0, 3), (0, 0, 6), (0, 0, 0), (0, 0, 5), (0, 0, 0), (5, 0, 0), (0, 0, 0), (6, 0, 0), (3, 0, 0))


class _Piece(NamedTuple):
    """A part of the border of a face, and the block of the face that it comes from."""

    face: int
    row_step: int
    column_step: int
    other: int
    turn: int


def _pieces() -> Iterator[_Piece]:
    """All parts of the borders that lie in another face: edges and corners."""
    for face in range(12):
        for row_step in (-1, 0, 1):
            for column_step in (-1, 0, 1):
                place = 4 + column_step + 3 * row_step
                other = _NEIGHBOUR[place][face]
                if place != 4 and other >= 0:
                    yield _Piece(face, row_step, column_step, other, _TURN[place][face // 4])


def _missing_corners() -> Iterator[tuple[int, int, int]]:
    """Face, row step and column step of the corners where three faces meet."""
    for face in range(12):
        for row_step in (-1, 1):
            for column_step in (-1, 1):
                if _NEIGHBOUR[4 + column_step + 3 * row_step][face] < 0:
                    yield face, row_step, column_step


_PIECES = tuple(_pieces())
_MISSING_CORNERS = tuple(_missing_corners())
_EDGES = {(piece.face, piece.row_step, piece.column_step): piece for piece in _PIECES}


def _border(step: int, nside: int, width: int) -> slice:
    """Rows or columns of a padded face in a part of it: before, within or after the face."""
    return {-1: slice(0, width), 0: slice(width, width + nside), 1: slice(width + nside, nside + 2 * width)}[step]


def _inside(step: int, nside: int, width: int) -> slice:
    """Rows or columns of a padded face that are as near to its edge as those of the border: the last within it."""
    return {-1: slice(width, 2 * width), 1: slice(nside, nside + width)}[step]


def _source(faces: torch.Tensor, piece: _Piece, width: int) -> torch.Tensor:
    """The block of another face that a part of the border shows, turned as it lies there; a view where possible."""
    n = faces.shape[3]
    # Where the part would lie in the other face if its axes were those of this one.
    row, column = ({-1: (n - width, n), 0: (0, n), 1: (0, width)}[step] for step in (piece.row_step, piece.column_step))
    if piece.turn & 2:
        row = (n - row[1], n - row[0])
    if piece.turn & 1:
        column = (n - column[1], n - column[0])
    block = faces[:, :, piece.other]
    if piece.turn & 4:
        block = block.transpose(2, 3)
    return block[:, :, row[0] : row[1], column[0] : column[1]]


def _flips(piece: _Piece) -> list[int]:
    """Axes of the block that run the other way."""
    return [axis for axis, bit in ((2, 2), (3, 1)) if piece.turn & bit]


def border_sources(nside: int, width: int) -> torch.Tensor:
    """The pixels that the borders of the faces are made of, for programs that are compiled or exported.

    Args:
        nside: n, the number of pixels along a side of a face.
        width: Width of the border.

    Returns:
        Numbers of pixels `(2, N)` in the flat faces, int64. A pixel of the border is a copy of the pixel whose number
        stands twice, or the mean of two. The order is that of the faces; in a face, the rows above it, the columns left
        and right of it, and the rows below it.
    """
    numbers = torch.arange(12 * nside**2).view(1, 1, 12, nside, nside)
    first = _pad_without_corners(numbers, width)
    second = first.clone()
    for (face, row_step, column_step), beyond_row, beyond_column in _corners(first, width):
        rows, columns = _border(row_step, nside, width), _border(column_step, nside, width)
        first[:, :, face, rows, columns], second[:, :, face, rows, columns] = beyond_row, beyond_column
    above, inside, below = (_border(step, nside, width) for step in (-1, 0, 1))
    parts = ((above, slice(None)), (inside, above), (inside, below), (below, slice(None)))
    return torch.stack(
        [
            torch.cat([padded[0, 0, :, rows, columns].flatten(1) for rows, columns in parts], dim=1).flatten()
            for padded in (first, second)
        ]
    )


def pad_faces(faces: torch.Tensor, width: int, sources: torch.Tensor | None = None) -> torch.Tensor:
    """Pads each face by the pixels of its neighbours; gradients go back to these.

    Eight corners of faces touch no other face: there, the border is the mean of the pixels beyond the two edges, as far
    from the corner.

    Args:
        faces: `(B, C, 12, n, n)`, floating.
        width: Width of the border, at most n.
        sources: What `border_sources` returns, on the device of the faces. A program that is compiled or exported is
            then small: a hundred parts of borders are copied by one operation.

    Returns:
        `(B, C, 12, n + 2 * width, n + 2 * width)`.
    """
    if faces.ndim != 5 or faces.shape[2] != 12 or faces.shape[3] != faces.shape[4]:
        raise ValueError(f"faces must be (B, C, 12, n, n), got shape {tuple(faces.shape)}")
    if not 0 <= width <= faces.shape[3]:
        raise ValueError(f"the border must be at most the {faces.shape[3]} pixels of a side wide, got {width}")
    if width == 0:
        return faces
    if torch.compiler.is_compiling() or has_transforms():
        return _pad(faces, width) if sources is None else _pad_from(faces, width, sources)
    return _PaddedFaces.apply(faces, width)  # type: ignore[return-value]


def _pad_without_corners(faces: torch.Tensor, width: int) -> torch.Tensor:
    B, C, _, n, _ = faces.shape
    size = n + 2 * width
    padded = faces.new_empty(B, C, 12, size, size)
    padded[..., width : width + n, width : width + n] = faces
    for piece in _PIECES:
        rows, columns = _border(piece.row_step, n, width), _border(piece.column_step, n, width)
        block, flips = _source(faces, piece, width), _flips(piece)
        padded[:, :, piece.face, rows, columns] = block.flip(flips) if flips else block
    return padded


def _corners(padded: torch.Tensor, width: int) -> Iterator[tuple[tuple[int, int, int], torch.Tensor, torch.Tensor]]:
    """Corners where three faces meet, and the pixels beyond the two edges that each is the mean of."""
    n = padded.shape[3] - 2 * width
    for face, row_step, column_step in _MISSING_CORNERS:
        part = padded[:, :, face]
        beyond_row = part[:, :, _border(row_step, n, width), _inside(column_step, n, width)].flip(3)
        beyond_column = part[:, :, _inside(row_step, n, width), _border(column_step, n, width)].flip(2)
        yield (face, row_step, column_step), beyond_row, beyond_column


def _pad(faces: torch.Tensor, width: int) -> torch.Tensor:
    n = faces.shape[3]
    padded = _pad_without_corners(faces, width)
    for (face, row_step, column_step), beyond_row, beyond_column in _corners(padded, width):
        rows, columns = _border(row_step, n, width), _border(column_step, n, width)
        # Halves first: a sum of two large half-precision numbers could overflow.
        padded[:, :, face, rows, columns] = beyond_row * 0.5 + beyond_column * 0.5
    return padded


def _pad_from(faces: torch.Tensor, width: int, sources: torch.Tensor) -> torch.Tensor:
    n, flat = faces.shape[3], faces.flatten(2)
    size = n + 2 * width
    first, second = (flat.index_select(2, source) for source in sources)
    border = torch.where(sources[0] == sources[1], first, first * 0.5 + second * 0.5).unflatten(2, (12, -1))
    above, left, right, below = border.split([width * size, n * width, n * width, width * size], dim=3)
    middle = torch.cat([left.unflatten(3, (n, width)), faces, right.unflatten(3, (n, width))], dim=4)
    return torch.cat([above.unflatten(3, (width, size)), middle, below.unflatten(3, (width, size))], dim=3)


class _PaddedFaces(torch.autograd.Function):
    @staticmethod
    def forward(ctx, faces, width):
        ctx.width = width
        return _pad(faces, width)

    @staticmethod
    def backward(ctx, *grad_outputs):
        (error,) = grad_outputs
        width, n = ctx.width, error.shape[3] - 2 * ctx.width
        gradient = error[..., width : width + n, width : width + n].clone(memory_format=torch.contiguous_format)
        for piece in _PIECES:
            rows, columns = _border(piece.row_step, n, width), _border(piece.column_step, n, width)
            _add_to_source(gradient, piece, width, error[:, :, piece.face, rows, columns])
        for face, row_step, column_step in _MISSING_CORNERS:
            # Half of the gradient goes to the pixels beyond either edge, of which the corner is the mean.
            rows, columns = _border(row_step, n, width), _border(column_step, n, width)
            half = error[:, :, face, rows, columns] * 0.5
            for piece, values in (
                (_EDGES[face, row_step, 0], half.flip(3)),
                (_EDGES[face, 0, column_step], half.flip(2)),
            ):
                along = column_step if piece.column_step == 0 else row_step
                _add_to_source(gradient, piece, width, values, near=along)
        return gradient, None


def _add_to_source(
    gradient: torch.Tensor, piece: _Piece, width: int, values: torch.Tensor, near: int | None = None
) -> None:
    """Adds the gradient of a part of the border to the block that it shows.

    Args:
        gradient: Gradient of the faces, changed in place.
        piece: Part of the border.
        width: Width of the border.
        values: Gradient of the part; with `near`, of those pixels of an edge that are nearest to one of its ends.
        near: That end, -1 or 1.
    """
    flips = _flips(piece)
    block = _source(gradient, piece, width)
    if near is not None:
        axis = 3 if piece.column_step == 0 else 2
        is_first = (near == -1) != (axis in flips)
        block = block.narrow(axis, 0 if is_first else block.shape[axis] - width, width)
    block.add_(values.flip(flips) if flips else values)
