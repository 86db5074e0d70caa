"""The routed convolution's output: at each pixel one matrix product whose rows are the pixel's filters.

At an output pixel, `output[filter, sample] = sum over taps and channels of weight[filter, tap, channel] *
input[sample, tap's pixel, channel]`: the rows of the first operand are reached through the pixel's filter numbers, and
the batch gives the columns. Channels are contiguous in both operands, so that they are copied 16 bytes at a time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from smoe.ops.triton.launch import ceil_div, launch
from smoe.ops.triton.problem import Problem
from smoe.ops.triton.tiles import Tile


@triton.jit
def tap_pixel(pixel, tap, height, width, output_width, KERNEL_HEIGHT, KERNEL_WIDTH, STRIDE, WRAPS_ROWS, WRAPS_COLUMNS):
    """The input pixel (flat) under a tap of the filter at an output pixel, and whether it is inside the grid."""
    row = (pixel // output_width) * STRIDE + tap // KERNEL_WIDTH - KERNEL_HEIGHT // 2
    column = (pixel % output_width) * STRIDE + tap % KERNEL_WIDTH - KERNEL_WIDTH // 2
    # The remainder of a negative number differs between compilers, so the dividend is made positive.
    if WRAPS_ROWS:
        row = (row + (KERNEL_HEIGHT // 2) * height) % height
    if WRAPS_COLUMNS:
        column = (column + (KERNEL_WIDTH // 2) * width) % width
    is_inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    return row * width + column, is_inside


@triton.jit
def forward_kernel(
    input,
    weight,
    filters,
    output,
    num_samples,
    channels,
    num_rows,
    num_pixels,
    height,
    width,
    output_width,
    KERNEL_HEIGHT: tl.constexpr,
    KERNEL_WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    WRAPS_ROWS: tl.constexpr,
    WRAPS_COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Computes `output[samples, pixel, rows]` for one pixel and a block of filters and samples.

    `input` is `(B, H * W, C)`, `weight` `(X * F, taps, C)`, `filters` `(P, E * F)`, `output` `(B, P, E * F)`.
    """
    # Programs that follow each other share a pixel, and with it the patch of the input.
    row_blocks = tl.cdiv(num_rows, ROWS)
    pixel = tl.program_id(0) // row_blocks
    rows = (tl.program_id(0) % row_blocks) * ROWS + tl.arange(0, ROWS)
    samples = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    chosen = tl.load(filters + pixel * num_rows + rows, mask=rows < num_rows, other=0)
    taps: tl.constexpr = KERNEL_HEIGHT * KERNEL_WIDTH
    channel_blocks = tl.cdiv(channels, DEPTH)
    sums = tl.zeros((COLUMNS, ROWS), dtype=tl.float32)
    for step in range(taps * channel_blocks):
        tap = step // channel_blocks
        channel = (step % channel_blocks) * DEPTH + tl.arange(0, DEPTH)
        source, is_inside = tap_pixel(
            pixel, tap, height, width, output_width, KERNEL_HEIGHT, KERNEL_WIDTH, STRIDE, WRAPS_ROWS, WRAPS_COLUMNS
        )
        bank = tl.load(
            weight + (chosen * taps + tap)[:, None] * channels + channel[None, :],
            mask=(rows < num_rows)[:, None] & (channel < channels)[None, :],
            other=0.0,
        )
        # The scalar is part of the bound: the interpreter refuses a block mask combined with a scalar.
        patch = tl.load(
            input + (samples * (height * width) + source)[:, None] * channels + channel[None, :],
            mask=(samples < tl.where(is_inside, num_samples, 0))[:, None] & (channel < channels)[None, :],
            other=0.0,
        )
        sums = tl.dot(patch, tl.trans(bank), sums, input_precision=PRECISION)
    tl.store(
        output + (samples * num_pixels + pixel)[:, None] * num_rows + rows[None, :],
        sums.to(output.dtype.element_ty),
        mask=(samples < num_samples)[:, None] & (rows < num_rows)[None, :],
    )


def routed_conv_forward(
    input: torch.Tensor, weight: torch.Tensor, filters: torch.Tensor, problem: Problem, tile: Tile
) -> torch.Tensor:
    """The output `(B, P, E * F)` from input `(B, H * W, C)`, weight `(X * F, taps, C)` and filters `(P, E * F)`."""
    num_samples, _, channels = input.shape
    num_pixels, num_rows = filters.shape
    output = input.new_empty(num_samples, num_pixels, num_rows)
    grid = (num_pixels * ceil_div(num_rows, tile.rows), ceil_div(num_samples, tile.columns))
    launch(
        *(forward_kernel, grid, input, weight, filters, output, num_samples, channels, num_rows, num_pixels),
        *(problem.height, problem.width, problem.output_width),
        **problem.options(tile),
    )
    return output
