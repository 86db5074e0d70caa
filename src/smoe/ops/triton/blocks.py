"""Loads and stores of blocks that consist of rows of a matrix, shared by the kernels of the routed convolution."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_rows(matrix, rows, is_row, columns, num_columns):
    """The block `matrix[rows, columns]` of a contiguous matrix; zeros where `is_row` is false or a column outside."""
    return tl.load(
        matrix + rows[:, None] * num_columns + columns[None, :],
        mask=is_row[:, None] & (columns < num_columns)[None, :],
        other=0.0,
    )


@triton.jit
def store_rows(matrix, values, rows, is_row, columns, num_columns):
    """Writes a block to `matrix[rows, columns]` of a contiguous matrix, in its dtype."""
    tl.store(
        matrix + rows[:, None] * num_columns + columns[None, :],
        values.to(matrix.dtype.element_ty),
        mask=is_row[:, None] & (columns < num_columns)[None, :],
    )
