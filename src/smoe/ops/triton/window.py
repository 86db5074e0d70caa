"""Which pixels a filter reads: shared by the kernels of the routed convolution."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl


class Window(NamedTuple):
    """What is known of a filter's window when a kernel is compiled.

    Attributes:
        height: Rows of a filter.
        width: Columns of a filter.
        stride: Stride of both axes.
        wraps_rows: Whether the grid is periodic along the height.
        wraps_columns: Whether the grid is periodic along the width.
        row_tap_step: Distance of the taps along the height that can read one input pixel.
        column_tap_step: Distance of the taps along the width that can read one input pixel.
    """

    height: int
    width: int
    stride: int
    wraps_rows: bool
    wraps_columns: bool
    row_tap_step: int
    column_tap_step: int


@triton.jit
def num_taps(WINDOW):
    """Number of taps of a filter."""
    return WINDOW.height * WINDOW.width


@triton.jit
def read_pixel(pixel, tap, height, width, output_width, WINDOW):
    """The input pixel (flat) under a tap of the filter at an output pixel, and whether it is inside the grid."""
    row = (pixel // output_width) * WINDOW.stride + tap // WINDOW.width - WINDOW.height // 2
    column = (pixel % output_width) * WINDOW.stride + tap % WINDOW.width - WINDOW.width // 2
    # The remainder of a negative number differs between compilers, so the dividend is made positive.
    if WINDOW.wraps_rows:
        row = (row + (WINDOW.height // 2) * height) % height
    if WINDOW.wraps_columns:
        column = (column + (WINDOW.width // 2) * width) % width
    is_inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    return row * width + column, is_inside


@triton.jit
def reading_position(position, tap, size, HALF, STRIDE, WRAPS):
    """Along one axis, the output position whose filter reads `position` through `tap`, -1 if there is none."""
    center = position + HALF - tap
    if WRAPS:
        center = (center + HALF * size) % size
    is_read = (center >= 0) & (center < size) & (center % STRIDE == 0)
    return tl.where(is_read, center // STRIDE, -1)


@triton.jit
def reading_taps(row, column, WINDOW):
    """The first tap that reads an input pixel along each axis, and how many taps do.

    With a stride, only some taps read a pixel: the others are left out where that is regular.
    """
    first_row_tap = (row + WINDOW.height // 2) % WINDOW.row_tap_step
    first_column_tap = (column + WINDOW.width // 2) % WINDOW.column_tap_step
    row_taps = tl.cdiv(WINDOW.height - first_row_tap, WINDOW.row_tap_step)
    column_taps = tl.cdiv(WINDOW.width - first_column_tap, WINDOW.column_tap_step)
    return first_row_tap, first_column_tap, row_taps, column_taps


@triton.jit
def nth_tap(first_row_tap, first_column_tap, number, column_taps, WINDOW):
    """Row, column and number in the filter of one of the taps that `reading_taps` counts."""
    row_tap = first_row_tap + (number // column_taps) * WINDOW.row_tap_step
    column_tap = first_column_tap + (number % column_taps) * WINDOW.column_tap_step
    return row_tap, column_tap, row_tap * WINDOW.width + column_tap


@triton.jit
def reading_pixel(row, column, row_tap, column_tap, height, width, output_width, WINDOW):
    """The output pixel (flat) whose filter reads an input pixel through a tap, 0 if there is none, and if there is."""
    reading_row = reading_position(row, row_tap, height, WINDOW.height // 2, WINDOW.stride, WINDOW.wraps_rows)
    reading_column = reading_position(column, column_tap, width, WINDOW.width // 2, WINDOW.stride, WINDOW.wraps_columns)
    is_read = (reading_row >= 0) & (reading_column >= 0)
    return tl.where(is_read, reading_row * output_width + reading_column, 0), is_read
