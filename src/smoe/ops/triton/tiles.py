"""Tile sizes of the routed convolution's kernels: a fixed choice by shape and dtype, without autotuning at run time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Direction = Literal["forward", "input_gradient", "weight_gradient", "atomic_weight_gradient"]

# How float32 products are computed: on tensor cores with 10 bits of mantissa, or exactly on the other units. For
# half-precision operands it has no meaning.
Precision = Literal["tf32", "ieee"]


@dataclass(frozen=True)
class Tile:
    """Block sizes of a matrix product on the GPU.

    Attributes:
        rows: Rows of the product: selected filters (forward, atomic weight gradient), input channels (input gradient),
            filters of the bank (weight gradient).
        columns: Columns of the product: samples (forward, input gradient) or input channels (weight gradients).
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

# Blocks along each side. There are always more filters in the bank than the smallest number of selected ones.
_ROWS = (32, 64, 128)
_BANK_ROWS = (64, 128)
_SAMPLES = (32, 64, 128)
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
    # Warps and stages are those with which the compiler spills no register (paper/results/gpu). The gradients load
    # filter or slot numbers inside their loops, and this indirection costs two stages.
    if direction == "weight_gradient":
        row_block, column_block = _block(rows, _BANK_ROWS), _block(columns, _CHANNELS)
        num_sums = row_block * column_block
        is_large = num_sums > 128 * 64 or (row_block, column_block) == (128, 64)
        depth_block = 16 if bytes_each == 4 and is_large else 32
        return Tile(row_block, column_block, depth_block, 8 if num_sums >= 128 * 32 else 4, 5)
    if direction == "atomic_weight_gradient":
        column_block = _block(columns, _CHANNELS[:2])
        return Tile(64, column_block, 32, 8 if column_block > 32 else 4, 3)
    row_block, column_block = _block(rows, _ROWS), _block(columns, _SAMPLES)
    # A step loads as many bytes for every dtype.
    depth_block = _block(depth, (32, 64)) * 2 // bytes_each
    is_large = row_block * column_block > 128 * 64
    if direction == "forward":
        return Tile(row_block, column_block, depth_block, 8 if is_large else 4, 3)
    is_flat = (row_block, column_block) == (128, 32)
    if bytes_each == 4 and row_block == 128 and not is_large:
        depth_block = 16
    return Tile(row_block, column_block, depth_block, 8 if is_large or is_flat else 4, 5)


def tiles_of(direction: Direction, *, bytes_each: int, precision: str) -> list[Tile]:
    """Every tile that `tile_for` can return for a dtype, for the compilation ahead of time."""
    found = {
        tile_for(direction, rows=rows, columns=columns, depth=depth, bytes_each=bytes_each, precision=precision)
        for rows in _ROWS
        for columns in _SAMPLES
        for depth in (32, 64)
    }
    return sorted(found, key=lambda tile: (-tile.rows, -tile.columns, -tile.depth))


def _block(size: int, blocks: tuple[int, ...]) -> int:
    """The smallest block that holds `size`, or the largest block."""
    return next((block for block in blocks if size <= block), blocks[-1])
