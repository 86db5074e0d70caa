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


# Products without tensor cores, for exact float32: each thread holds its part of both operands in registers.
_EXACT = Tile(32, 32, 16, num_warps=4, num_stages=2)

_ROWS = (32, 64, 128)
_SAMPLES = (16, 32, 64, 128)
_CHANNELS = (32, 64, 128)


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
    row_block = _block(rows, _ROWS)
    column_block = _block(columns, _CHANNELS if direction == "weight_gradient" else _SAMPLES)
    # Warps and stages are those with which the compiler spills no register (results/gpu). The gradients load filter or
    # slot numbers inside their loops, and this indirection costs two stages.
    num_sums = row_block * column_block
    if direction == "weight_gradient":
        depth_block, num_stages = _block(depth, (16, 32)), 5
        num_warps = 8 if num_sums >= 128 * 32 else 2 if num_sums <= 32 * 32 else 4
    else:
        depth_block, num_stages = _block(depth, (32, 64)), 3
        num_warps = 8 if num_sums > 128 * 64 else 4
        if direction == "input_gradient":
            num_stages = 7 if column_block == 32 else 5
    # A step loads as many bytes for every dtype, but a product has at least 16 elements of depth.
    depth_block = max(depth_block * 2 // bytes_each, 16)
    return Tile(row_block, column_block, depth_block, num_warps, num_stages)


def tiles_of(direction: Direction, *, bytes_each: int, precision: str) -> list[Tile]:
    """Every tile that `tile_for` can return for a dtype, for the compilation ahead of time."""
    columns_of = _CHANNELS if direction == "weight_gradient" else _SAMPLES
    found = {
        tile_for(direction, rows=rows, columns=columns, depth=depth, bytes_each=bytes_each, precision=precision)
        for rows in _ROWS
        for columns in columns_of
        for depth in (16, 32, 64)
    }
    return sorted(found, key=lambda tile: (-tile.rows, -tile.columns, -tile.depth))


def _block(size: int, blocks: tuple[int, ...]) -> int:
    """The smallest block that holds `size`, or the largest block."""
    return next((block for block in blocks if size <= block), blocks[-1])
