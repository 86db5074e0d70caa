"""Tile sizes of the routed convolution's kernels: a fixed choice by shape and dtype, without autotuning at run time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Direction = Literal["forward", "input_gradient", "weight_gradient"]

# How float32 products are computed: on tensor cores with 10 bits of mantissa, or exactly on the other units. For
# half-precision operands it has no meaning.
Precision = Literal["tf32", "ieee"]


@dataclass(frozen=True)
class Tile:
    """Block sizes of a matrix product on the GPU.

    Attributes:
        rows: Rows of the product: selected filters (forward), input channels (input gradient), filters of the bank
            (weight gradient).
        columns: Columns of the product: samples (forward, input gradient) or input channels (weight gradient).
        depth: Elements that are summed in one step: input channels, selected filters, or samples.
        num_warps: Warps of a program.
        num_stages: Steps whose loads are under way at the same time.
    """

    rows: int
    columns: int
    depth: int
    num_warps: int
    num_stages: int

    @property
    def name(self) -> str:
        """The block sizes as `rows x columns x depth`."""
        return f"{self.rows}x{self.columns}x{self.depth}"


# Sizes for 2-byte elements; `tile_for` halves the depth for 4-byte elements, so that a step loads as many bytes. The
# input gradient loads filter numbers inside its loop, and each indirection costs a stage.
_TILES: dict[Direction, dict[tuple[bool, bool], Tile]] = {
    "forward": {
        (True, True): Tile(128, 64, 64, num_warps=4, num_stages=3),
        (True, False): Tile(128, 16, 64, num_warps=4, num_stages=3),
        (False, True): Tile(32, 64, 32, num_warps=4, num_stages=3),
        (False, False): Tile(32, 16, 32, num_warps=2, num_stages=3),
    },
    "input_gradient": {
        (True, True): Tile(128, 64, 64, num_warps=4, num_stages=5),
        (True, False): Tile(128, 16, 64, num_warps=4, num_stages=5),
        (False, True): Tile(32, 64, 32, num_warps=4, num_stages=5),
        (False, False): Tile(32, 16, 32, num_warps=2, num_stages=5),
    },
    "weight_gradient": {
        (True, True): Tile(128, 128, 32, num_warps=8, num_stages=5),
        (True, False): Tile(128, 32, 32, num_warps=4, num_stages=5),
        (False, True): Tile(32, 128, 32, num_warps=4, num_stages=5),
        (False, False): Tile(32, 32, 32, num_warps=4, num_stages=5),
    },
}

# Exact float32 products have no tensor cores: each thread holds its part of both operands in registers.
_EXACT = Tile(32, 32, 16, num_warps=4, num_stages=2)


def tile_for(direction: Direction, *, rows: int, columns: int, depth: int, bytes_each: int, precision: str) -> Tile:
    """The tile for a product of `rows x columns` with sums over `depth` elements.

    Args:
        direction: Kernel.
        rows: Rows of the product.
        columns: Columns of the product.
        depth: Number of contiguous elements of a sum: input channels, selected filters, or samples.
        bytes_each: Bytes of an element of the operands, 2 or 4.
        precision: `tf32` or `ieee`, for 4-byte elements.
    """
    if bytes_each == 4 and precision == "ieee":
        return _EXACT
    is_deep = direction == "weight_gradient" or depth > 32
    has_columns = columns > (32 if direction == "weight_gradient" else 16)
    tile = _TILES[direction][rows > 32 and is_deep, has_columns]
    if bytes_each == 2:
        return tile
    return Tile(tile.rows, tile.columns, tile.depth // 2, tile.num_warps, tile.num_stages)


def tiles_of(direction: Direction, *, bytes_each: int, precision: str) -> list[Tile]:
    """Every tile that `tile_for` can return for a dtype, for the compilation ahead of time."""
    found = {
        tile_for(direction, rows=rows, columns=columns, depth=64, bytes_each=bytes_each, precision=precision)
        for rows in (16, 64)
        for columns in (16, 64)
    }
    return sorted(found, key=lambda tile: (-tile.rows, -tile.columns))
