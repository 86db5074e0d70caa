"""The routed convolution's gradient at its input: at each input pixel one matrix product over taps and filters.

`gradient[channel, sample] = sum over taps and the filters of the tap's output pixel of weight[filter, tap, channel] *
error[sample, tap's output pixel, slot]`. Every input pixel collects from the output pixels that read it, so that no two
programs write to one place: the result is deterministic.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from smoe.ops.triton.blocks import block_and_sample, load_pixel, load_rows, store_rows
from smoe.ops.triton.launch import ceil_div, launch
from smoe.ops.triton.problem import Problem
from smoe.ops.triton.tiles import Tile
from smoe.ops.triton.window import nth_tap, num_taps, reading_pixel, reading_taps


@triton.jit
def input_gradient_kernel(
    error,
    weight,
    filters,
    gradient,
    num_samples,
    channels,
    num_filters,
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
    """Computes `gradient[samples, pixel, channels]` for one input pixel and a block of channels and samples.

    `error` is `(B, P, E * F)`, `weight` `(X * F, taps, C)`, `filters` `(P, E * F)`, `gradient` `(B, H * W, C)`.
    """
    channel_blocks = tl.cdiv(channels, ROWS)
    block, sample_block = block_and_sample(channel_blocks * height * width)
    pixel = block // channel_blocks
    channel = (block % channel_blocks) * ROWS + tl.arange(0, ROWS)
    samples = sample_block * COLUMNS + tl.arange(0, COLUMNS)
    row, column = pixel // width, pixel % width
    first_row_tap, first_column_tap, row_taps, column_taps = reading_taps(row, column, WINDOW)
    slot_blocks = tl.cdiv(num_filters, DEPTH)
    sums = tl.zeros((COLUMNS, ROWS), dtype=tl.float32)
    for step in range(row_taps * column_taps * slot_blocks):
        number = step // slot_blocks
        row_tap, column_tap, tap = nth_tap(first_row_tap, first_column_tap, number, column_taps, WINDOW)
        reader, is_read = reading_pixel(row, column, row_tap, column_tap, height, width, output_width, WINDOW)
        slots = (step % slot_blocks) * DEPTH + tl.arange(0, DEPTH)
        is_slot = slots < num_filters
        chosen = tl.load(filters + reader * num_filters + slots, mask=is_slot, other=0)
        bank = load_rows(weight, chosen * num_taps(WINDOW) + tap, is_slot, channel, channels)
        signal = load_pixel(error, samples, num_samples, reader, is_read, num_pixels, slots, num_filters)
        sums = tl.dot(signal, bank, sums, input_precision=PRECISION)
    store_rows(gradient, sums, samples * (height * width) + pixel, samples < num_samples, channel, channels)


def routed_conv_input_gradient(
    error: torch.Tensor, weight: torch.Tensor, filters: torch.Tensor, problem: Problem, tile: Tile
) -> torch.Tensor:
    """The gradient `(B, H * W, C)` from error `(B, P, E * F)`, weight `(X * F, taps, C)` and filters `(P, E * F)`."""
    num_samples, num_pixels, num_filters = error.shape
    channels = weight.shape[2]
    gradient = error.new_empty(num_samples, problem.height * problem.width, channels)
    grid = (gradient.shape[1] * ceil_div(channels, tile.rows) * ceil_div(num_samples, tile.columns),)
    launch(
        *(input_gradient_kernel, grid, error, weight, filters, gradient, num_samples, channels, num_filters),
        *(num_pixels, problem.height, problem.width, problem.output_width),
        **problem.options(tile),
    )
    return gradient
