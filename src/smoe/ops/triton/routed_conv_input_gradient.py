"""The routed convolution's gradient at its input: at each input pixel one matrix product over taps and filters.

`gradient[channel, sample] = sum over taps and the filters of the tap's output pixel of weight[filter, tap, channel] *
error[sample, tap's output pixel, slot]`. Every input pixel collects from the output pixels that read it, so that no two
programs write to one place: the result is deterministic.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from smoe.ops.triton.launch import ceil_div, launch
from smoe.ops.triton.problem import Problem
from smoe.ops.triton.tiles import Tile


@triton.jit
def reading_position(position, tap, size, HALF, STRIDE, WRAPS):
    """Along one axis, the output position whose filter reads `position` through `tap`, and whether there is one."""
    center = position + HALF - tap
    if WRAPS:
        center = (center + HALF * size) % size
    is_read = (center >= 0) & (center < size) & (center % STRIDE == 0)
    return center // STRIDE, is_read


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
    KERNEL_HEIGHT: tl.constexpr,
    KERNEL_WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    WRAPS_ROWS: tl.constexpr,
    WRAPS_COLUMNS: tl.constexpr,
    ROW_TAP_STEP: tl.constexpr,
    COLUMN_TAP_STEP: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Computes `gradient[samples, pixel, channels]` for one input pixel and a block of channels and samples.

    `error` is `(B, P, E * F)`, `weight` `(X * F, taps, C)`, `filters` `(P, E * F)`, `gradient` `(B, H * W, C)`.
    """
    channel_blocks = tl.cdiv(channels, ROWS)
    pixel = tl.program_id(0) // channel_blocks
    channel = (tl.program_id(0) % channel_blocks) * ROWS + tl.arange(0, ROWS)
    samples = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row, column = pixel // width, pixel % width
    # With a stride, only every STRIDE-th tap reads this pixel: the others are left out where that is regular.
    first_row_tap = (row + KERNEL_HEIGHT // 2) % ROW_TAP_STEP
    first_column_tap = (column + KERNEL_WIDTH // 2) % COLUMN_TAP_STEP
    row_taps = tl.cdiv(KERNEL_HEIGHT - first_row_tap, ROW_TAP_STEP)
    column_taps = tl.cdiv(KERNEL_WIDTH - first_column_tap, COLUMN_TAP_STEP)
    slot_blocks = tl.cdiv(num_filters, DEPTH)
    sums = tl.zeros((COLUMNS, ROWS), dtype=tl.float32)
    for step in range(row_taps * column_taps * slot_blocks):
        tap = step // slot_blocks
        row_tap = first_row_tap + (tap // column_taps) * ROW_TAP_STEP
        column_tap = first_column_tap + (tap % column_taps) * COLUMN_TAP_STEP
        reading_row, is_row = reading_position(row, row_tap, height, KERNEL_HEIGHT // 2, STRIDE, WRAPS_ROWS)
        reading_column, is_column = reading_position(
            column, column_tap, width, KERNEL_WIDTH // 2, STRIDE, WRAPS_COLUMNS
        )
        reader = tl.where(is_row & is_column, reading_row * output_width + reading_column, 0)
        slots = (step % slot_blocks) * DEPTH + tl.arange(0, DEPTH)
        chosen = tl.load(filters + reader * num_filters + slots, mask=slots < num_filters, other=0)
        taps: tl.constexpr = KERNEL_HEIGHT * KERNEL_WIDTH
        bank = tl.load(
            weight + (chosen * taps + row_tap * KERNEL_WIDTH + column_tap)[:, None] * channels + channel[None, :],
            mask=(slots < num_filters)[:, None] & (channel < channels)[None, :],
            other=0.0,
        )
        signal = tl.load(
            error + (samples * num_pixels + reader)[:, None] * num_filters + slots[None, :],
            mask=(samples < tl.where(is_row & is_column, num_samples, 0))[:, None] & (slots < num_filters)[None, :],
            other=0.0,
        )
        sums = tl.dot(signal, bank, sums, input_precision=PRECISION)
    tl.store(
        gradient + (samples * (height * width) + pixel)[:, None] * channels + channel[None, :],
        sums.to(gradient.dtype.element_ty),
        mask=(samples < num_samples)[:, None] & (channel < channels)[None, :],
    )


def routed_conv_input_gradient(
    error: torch.Tensor, weight: torch.Tensor, filters: torch.Tensor, problem: Problem, tile: Tile
) -> torch.Tensor:
    """The gradient `(B, H * W, C)` from error `(B, P, E * F)`, weight `(X * F, taps, C)` and filters `(P, E * F)`."""
    num_samples, num_pixels, num_filters = error.shape
    channels = weight.shape[2]
    gradient = error.new_empty(num_samples, problem.height * problem.width, channels)
    grid = (gradient.shape[1] * ceil_div(channels, tile.rows), ceil_div(num_samples, tile.columns))
    launch(
        *(input_gradient_kernel, grid, error, weight, filters, gradient, num_samples, channels, num_filters),
        *(num_pixels, problem.height, problem.width, problem.output_width),
        **problem.tap_steps(),
        **problem.options(tile),
    )
    return gradient
