"""Orders of the pixels of a HEALPix sphere (Gorski et al. 2005): faces, nested and ring; and their coordinates.

Face f has rows y, towards the north-west, and columns x, towards the north-east: pixel `[f, y, x]`, with the south
corner of the face at `[f, 0, 0]`.
"""

from __future__ import annotations

import functools
import math
from typing import Literal, get_args

import numpy as np
import torch

from smoe.ops.registration import has_transforms

HEALPixOrder = Literal["nested", "ring"]
HEALPIX_ORDERS: tuple[HEALPixOrder, ...] = get_args(HEALPixOrder)

# Ring, in units of nside, and longitude, in units of pi / 4, of the south corner of each face.
_FACE_RING = np.array([2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4])
_FACE_LONGITUDE = np.array([1, 3, 5, 7, 0, 2, 4, 6, 1, 3, 5, 7])


def check_nside(nside: int, order: HEALPixOrder | None = None) -> int:
    """The number of pixels along a side of a face.

    Raises:
        ValueError: If it is no positive integer, or no power of two where the order is nested.
    """
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
    """Refuses coordinates that are not those of the order.

    Args:
        coordinates: Latitude and longitude of the pixels in degrees, `(12 * nside * nside, 2)`.
        nside: Pixels along a side of a face.
        order: Order that the pixels should have.

    Raises:
        ValueError: If they are those of another order, or of no HEALPix sphere of this size.
    """
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
