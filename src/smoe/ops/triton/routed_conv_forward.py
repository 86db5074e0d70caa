"""The routed convolution's output: at each pixel one matrix product whose rows are the pixel's filters.

At an output pixel, `output[filter, sample] = sum over taps and channels of weight[filter, tap, channel] *
input[sample, tap's pixel, channel]`: the rows of the first operand are reached through the pixel's filter numbers, and
the batch gives the columns. Channels are contiguous in both operands, so that they are copied 16 bytes at a time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from smoe.ops.triton.blocks import block_and_sample, load_pixel, load_rows, store_rows
from smoe.ops.triton.launch import ceil_div, launch
from smoe.ops.triton.problem import Problem
from smoe.ops.triton.tiles import Tile
from smoe.ops.triton.window import num_taps, read_pixel


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
    WINDOW: tl.constexpr,
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
    block, sample_block = block_and_sample(row_blocks * num_pixels)
    pixel = block // row_blocks
    rows = (block % row_blocks) * ROWS + tl.arange(0, ROWS)
    samples = sample_block * COLUMNS + tl.arange(0, COLUMNS)
    chosen = tl.load(filters + pixel * num_rows + rows, mask=rows < num_rows, other=0)
    taps = num_taps(WINDOW)
    channel_blocks = tl.cdiv(channels, DEPTH)
    sums = tl.zeros((COLUMNS, ROWS), dtype=tl.float32)
    for step in range(taps * channel_blocks):
        tap = step // channel_blocks
        channel = (step % channel_blocks) * DEPTH + tl.arange(0, DEPTH)
        source, is_inside = read_pixel(pixel, tap, height, width, output_width, WINDOW)
        bank = load_rows(weight, chosen * taps + tap, rows < num_rows, channel, channels)
        patch = load_pixel(input, samples, num_samples, source, is_inside, height * width, channel, channels)
        sums = tl.dot(patch, tl.trans(bank), sums, input_precision=PRECISION)
    store_rows(output, sums, samples * num_pixels + pixel, samples < num_samples, rows, num_rows)


def routed_conv_forward(
    input: torch.Tensor, weight: torch.Tensor, filters: torch.Tensor, problem: Problem, tile: Tile
) -> torch.Tensor:
    """The output `(B, P, E * F)` from input `(B, H * W, C)`, weight `(X * F, taps, C)` and filters `(P, E * F)`."""
    num_samples, _, channels = input.shape
    num_pixels, num_rows = filters.shape
    output = input.new_empty(num_samples, num_pixels, num_rows)
    grid = (num_pixels * ceil_div(num_rows, tile.rows) * ceil_div(num_samples, tile.columns),)
    launch(
        *(forward_kernel, grid, input, weight, filters, output, num_samples, channels, num_rows, num_pixels),
        *(problem.height, problem.width, problem.output_width),
        **problem.options(tile),
    )
    return output
