"""HEALPix pixels: their numbers, faces, and neighbours across the borders of faces."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch

from smoe.ops._operators import has_library, has_transforms, is_plain, native_library, num_threads

HEALPixOrder = Literal["nested", "ring"]
HEALPIX_ORDERS: tuple[HEALPixOrder, ...] = get_args(HEALPixOrder)

# Ring, in units of nside, and longitude, in units of pi / 4, of the south corner of each face.
_FACE_RING = np.array([2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4])
_FACE_LONGITUDE = np.array([1, 3, 5, 7, 0, 2, 4, 6, 1, 3, 5, 7])


def check_nside(nside: int, order: HEALPixOrder | None = None) -> int:
    if not isinstance(nside, int) or nside < 1:
        raise ValueError(f"nside must be an integer of at least 1, got {nside}")
    if order is not None and order not in HEALPIX_ORDERS:
        raise ValueError(f"pixel_order must be one of {', '.join(HEALPIX_ORDERS)}, got {order!r}")
    if order == "nested" and nside & (nside - 1):
        raise ValueError(f"nside must be a power of two in nested order, got {nside}; use pixel_order='ring'")
    return nside


@functools.lru_cache(maxsize=8)
def face_pixels(nside: int, order: HEALPixOrder) -> torch.Tensor:
    """Pixel number in an order for each pixel of the faces, flat `(12 * nside * nside,)`, int64."""
    check_nside(nside, order)
    face, y, x = np.meshgrid(np.arange(12), np.arange(nside), np.arange(nside), indexing="ij")
    numbers = _nested(face, y, x, nside) if order == "nested" else _ring(face, y, x, nside)
    return torch.from_numpy(numbers.reshape(-1))


def _nested(face: np.ndarray, y: np.ndarray, x: np.ndarray, nside: int) -> np.ndarray:
    number = np.zeros_like(x)
    for bit in range(nside.bit_length()):
        number |= ((x >> bit) & 1) << (2 * bit)
        number |= ((y >> bit) & 1) << (2 * bit + 1)
    return face * nside * nside + number


def _ring_place(face: np.ndarray, y: np.ndarray, x: np.ndarray, nside: int) -> tuple[np.ndarray, ...]:
    """Ring from the north, a quarter of its pixels, its shift, and the place in it from 1."""
    ring = _FACE_RING[face] * nside - x - y - 1
    quarter = np.where(ring < nside, ring, np.where(ring > 3 * nside, 4 * nside - ring, nside))
    shift = np.where((ring >= nside) & (ring <= 3 * nside), (ring - nside) & 1, 0)
    place = (_FACE_LONGITUDE[face] * quarter + x - y + 1 + shift) // 2
    place = np.where(place > 4 * nside, place - 4 * nside, place)
    place = np.where(place < 1, place + 4 * nside, place)
    return ring, quarter, shift, place


def _ring(face: np.ndarray, y: np.ndarray, x: np.ndarray, nside: int) -> np.ndarray:
    ring, quarter, _, place = _ring_place(face, y, x, nside)
    cap = 2 * nside * (nside - 1)
    south = 12 * nside * nside - 2 * quarter * (quarter + 1)
    before = np.where(ring < nside, 2 * ring * (ring - 1), cap + (ring - nside) * 4 * nside)
    return np.where(ring > 3 * nside, south, before) + place - 1


@functools.lru_cache(maxsize=8)
def healpix_coordinates(nside: int, order: HEALPixOrder | None = None) -> torch.Tensor:
    """Latitude and longitude of the centres of pixels in degrees, `(12 * nside * nside, 2)`, float64.

    Args:
        nside: Pixels along a side of a face.
        order: Order of the pixels; None for that of the faces.
    """
    check_nside(nside, order)
    face, y, x = np.meshgrid(np.arange(12), np.arange(nside), np.arange(nside), indexing="ij")
    ring, quarter, shift, place = _ring_place(face, y, x, nside)
    height = np.where(
        ring < nside,
        1.0 - quarter**2 / (3.0 * nside**2),
        np.where(ring > 3 * nside, quarter**2 / (3.0 * nside**2) - 1.0, (2 * nside - ring) * 2.0 / (3.0 * nside)),
    )
    longitude = (place - 0.5 * (1.0 + shift)) * (math.pi / 2.0) / quarter
    both = np.stack([np.degrees(np.arcsin(height)), np.degrees(longitude) % 360.0], axis=-1).reshape(-1, 2)
    coordinates = torch.from_numpy(both)
    if order is None:
        return coordinates
    ordered = torch.empty_like(coordinates)
    ordered[face_pixels(nside, order)] = coordinates
    return ordered


def check_healpix_coordinates(coordinates: torch.Tensor, nside: int, order: HEALPixOrder) -> None:
    num_pixels = 12 * nside * nside
    if tuple(coordinates.shape) != (num_pixels, 2):
        raise ValueError(f"coordinates must be ({num_pixels}, 2) for nside {nside}, got {tuple(coordinates.shape)}")
    orders: list[HEALPixOrder] = [name for name in HEALPIX_ORDERS if name == "ring" or nside & (nside - 1) == 0]
    matches = [name for name in orders if _is_near(coordinates, healpix_coordinates(nside, name))]
    if order in matches:
        return
    if matches:
        raise ValueError(
            f"the coordinates are those of pixels in {matches[0]} order, but pixel_order is {order!r}; give "
            f"pixel_order={matches[0]!r}"
        )
    raise ValueError(f"the coordinates are not those of the pixels of a HEALPix sphere with nside {nside}")


def _is_near(one: torch.Tensor, other: torch.Tensor) -> bool:
    # A pixel is some 58 / nside degrees wide; longitudes of files may be negative.
    one, other = (_directions(part.double()) for part in (one, other))
    return bool((one - other).norm(dim=1).max() < 1e-3)


def _directions(coordinates: torch.Tensor) -> torch.Tensor:
    latitude, longitude = coordinates.deg2rad().unbind(dim=1)
    return torch.stack([latitude.cos() * longitude.cos(), latitude.cos() * longitude.sin(), latitude.sin()], dim=1)


def permute_pixels(input: torch.Tensor, pixels: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    """Orders the pixels of `(B, C, P)` as `pixels` has them; gradients go back by the inverse permutation."""
    if torch.compiler.is_compiling() or has_transforms():
        return input.index_select(2, pixels)
    return _Permutation.apply(input, pixels, inverse)  # type: ignore[return-value]


class _Permutation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, pixels, inverse):
        ctx.save_for_backward(inverse)
        return input.index_select(2, pixels)

    @staticmethod
    def backward(ctx, *grad_outputs):
        return grad_outputs[0].index_select(2, ctx.saved_tensors[0]), None, None


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


_STEPS = tuple(itertools.product(range(12), (-1, 0, 1), (-1, 0, 1)))
# All parts of the borders that lie in another face: edges and corners.
_PIECES = tuple(
    _Piece(face, row, column, _NEIGHBOUR[4 + column + 3 * row][face], _TURN[4 + column + 3 * row][face // 4])
    for face, row, column in _STEPS
    if (row or column) and _NEIGHBOUR[4 + column + 3 * row][face] >= 0
)
# Face, row step and column step of the corners where three faces meet.
_MISSING_CORNERS = tuple(place for place in _STEPS if _NEIGHBOUR[4 + place[2] + 3 * place[1]][place[0]] < 0)


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


@functools.lru_cache(maxsize=8)
def border_sources(nside: int, width: int) -> torch.Tensor:
    """The pixels that the borders of the faces are made of."""
    numbers = torch.arange(12 * nside**2).view(1, 1, 12, nside, nside)
    size = nside + 2 * width
    first = numbers.new_empty(1, 1, 12, size, size)
    for piece in _PIECES:
        rows, columns = _border(piece.row_step, nside, width), _border(piece.column_step, nside, width)
        block, flips = _source(numbers, piece, width), _flips(piece)
        first[:, :, piece.face, rows, columns] = block.flip(flips) if flips else block
    second = first.clone()
    for face, row_step, column_step in _MISSING_CORNERS:
        part = first[:, :, face]
        rows, columns = _border(row_step, nside, width), _border(column_step, nside, width)
        beyond_row = part[:, :, rows, _inside(column_step, nside, width)].flip(3)
        beyond_column = part[:, :, _inside(row_step, nside, width), columns].flip(2)
        first[:, :, face, rows, columns], second[:, :, face, rows, columns] = beyond_row, beyond_column
    above, inside, below = (_border(step, nside, width) for step in (-1, 0, 1))
    parts = ((above, slice(None)), (inside, above), (inside, below), (below, slice(None)))
    return torch.stack(
        [
            torch.cat([padded[0, 0, :, rows, columns].flatten(1) for rows, columns in parts], dim=1).flatten()
            for padded in (first, second)
        ]
    )


class _Borders(torch.autograd.Function):
    # By kernels, in a sixth of the time: pads faces, or is the adjoint of that.

    @staticmethod
    def forward(ctx, given, width, sources, is_padding):
        ctx.save_for_backward(sources)
        ctx.options = width, is_padding
        n, library = given.shape[3] - (0 if is_padding else 2 * width), native_library()
        size = n + 2 * width if is_padding else n
        found = given.new_empty(*given.shape[:3], size, size)
        name = "smoe_pad_faces" if is_padding else "smoe_pad_faces_gradient"
        assert library is not None
        library.call(name, given.shape[:2].numel(), n, width, sources, given.contiguous(), found, num_threads())
        return found

    @staticmethod
    def backward(ctx, *grad_outputs):
        width, is_padding = ctx.options
        return _Borders.apply(grad_outputs[0], width, ctx.saved_tensors[0], not is_padding), None, None, None


def pad_faces(faces: torch.Tensor, width: int, sources: torch.Tensor | None = None) -> torch.Tensor:
    """Pads each face by the pixels of its neighbours; gradients go back to these.

    Eight corners of faces touch no other face: there, the border is the mean of the pixels beyond the two edges, as far
    from the corner.

    Args:
        faces: `(B, C, 12, n, n)`, floating.
        width: Width of the border, at most n.
        sources: What `border_sources` returns, on the device of the faces; None to make it.

    Returns:
        `(B, C, 12, n + 2 * width, n + 2 * width)`.
    """
    if faces.ndim != 5 or faces.shape[2] != 12 or faces.shape[3] != faces.shape[4]:
        raise ValueError(f"faces must be (B, C, 12, n, n), got shape {tuple(faces.shape)}")
    if not 0 <= width <= faces.shape[3]:
        raise ValueError(f"the border must be at most the {faces.shape[3]} pixels of a side wide, got {width}")
    if width == 0:
        return faces
    sources = border_sources(faces.shape[3], width).to(faces.device) if sources is None else sources
    if is_plain(faces) and has_library() and faces.numel():
        return _Borders.apply(faces, width, sources, True)  # type: ignore[return-value]
    n, flat = faces.shape[3], faces.flatten(2)
    size = n + 2 * width
    first, second = (flat.index_select(2, source) for source in sources)
    # Halves first: a sum of two large half-precision numbers could overflow.
    border = torch.where(sources[0] == sources[1], first, first * 0.5 + second * 0.5).unflatten(2, (12, -1))
    above, left, right, below = border.split([width * size, n * width, n * width, width * size], dim=3)
    middle = torch.cat([left.unflatten(3, (n, width)), faces, right.unflatten(3, (n, width))], dim=4)
    return torch.cat([above.unflatten(3, (width, size)), middle, below.unflatten(3, (width, size))], dim=3)
