"""Loads and stores of blocks that consist of rows of a matrix, and the place of a program among blocks and samples."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def block_and_sample(num_blocks):
    """Number of the block and of the sample that a program works on, if each sample has `num_blocks` of them.

    Both are parts of the first axis of the grid, because the others end at 65,535 programs.
    """
    return tl.program_id(0) % num_blocks, tl.program_id(0) // num_blocks


@triton.jit
def load_rows(matrix, rows, is_row, columns, num_columns):
    """The block `matrix[rows, columns]` of a contiguous matrix; zeros where `is_row` is false or a column outside."""
    return tl.load(
        matrix + rows[:, None] * num_columns + columns[None, :],
        mask=is_row[:, None] & (columns < num_columns)[None, :],
        other=0.0,
    )


@triton.jit
def load_pixel(values, samples, num_samples, pixel, is_inside, num_pixels, columns, num_columns):
    """The block `values[samples, pixel, columns]` of a contiguous tensor; zeros where `is_inside` is false."""
    # The scalar is part of the bound: the interpreter refuses a block mask combined with a scalar.
    is_sample = samples < tl.where(is_inside, num_samples, 0)
    return load_rows(values, samples * num_pixels + pixel, is_sample, columns, num_columns)


@triton.jit
def store_rows(matrix, values, rows, is_row, columns, num_columns):
    """Writes a block to `matrix[rows, columns]` of a contiguous matrix, in its dtype."""
    tl.store(
        matrix + rows[:, None] * num_columns + columns[None, :],
        values.to(matrix.dtype.element_ty),
        mask=is_row[:, None] & (columns < num_columns)[None, :],
    )
