"""The routed convolution's gradient at the bank of filters.

`gradient[filter, tap, channel] = sum over pixels and samples of error[sample, pixel, slot of the filter] *
input[sample, tap's pixel, channel]`.

The masked kernel is the default. A program owns a block of filters and channels of one tap, walks over the pixels and
multiplies; a filter that is not selected at a pixel contributes a row of zeros. Nothing is added by two programs to one
place, so the result is deterministic, but the products are X / E times those that are needed: with a random routing no
block of filters is idle at a pixel. The atomic kernel computes only what is needed and adds it with float32 atomics,
whose order, and so the last bits, differ from run to run.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from smoe.ops.triton.blocks import load_pixel, load_rows, store_rows
from smoe.ops.triton.launch import ceil_div, launch
from smoe.ops.triton.problem import Problem
from smoe.ops.triton.slots import find_slots
from smoe.ops.triton.tiles import Tile
from smoe.ops.triton.window import num_taps, read_pixel

# Rows of the packed error have a multiple of this number of samples, so that they are copied 16 bytes at a time.
SAMPLE_MULTIPLE = 16

# Programs that keep the multiprocessors of a large GPU busy. A constant, and not the number of the device at hand, so
# that the order of summation is the same on every device.
_ENOUGH_PROGRAMS = 512
_MIN_PIXELS_PER_PROGRAM = 32


@triton.jit
def masked_kernel(
    error,
    input,
    slots,
    gradient,
    num_samples,
    padded_samples,
    channels,
    num_filters,
    num_selected,
    num_pixels,
    pixels_each,
    height,
    width,
    output_width,
    WINDOW: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Computes the part of `gradient[filters, tap, channels]` that belongs to a share of the pixels.

    `error` is `(P, E * F, padded samples)`, `input` `(B, H * W, C)`, `slots` `(P, X * F)`, the slot of each filter
    or -1, and `gradient` `(shares, X * F, taps, C)`, float32.
    """
    taps = num_taps(WINDOW)
    filter_blocks = tl.cdiv(num_filters, ROWS)
    tap = tl.program_id(0) % taps
    rows = (tl.program_id(0) // taps % filter_blocks) * ROWS + tl.arange(0, ROWS)
    channel = (tl.program_id(0) // taps // filter_blocks) * COLUMNS + tl.arange(0, COLUMNS)
    first_pixel = tl.program_id(1) * pixels_each
    last_pixel = tl.minimum(first_pixel + pixels_each, num_pixels)
    sample_blocks = tl.cdiv(num_samples, DEPTH)
    sums = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for step in range((last_pixel - first_pixel) * sample_blocks):
        pixel = first_pixel + step // sample_blocks
        samples = (step % sample_blocks) * DEPTH + tl.arange(0, DEPTH)
        source, is_inside = read_pixel(pixel, tap, height, width, output_width, WINDOW)
        slot = tl.load(slots + pixel * num_filters + rows, mask=rows < num_filters, other=-1)
        signal = load_rows(error, pixel * num_selected + slot, slot >= 0, samples, padded_samples)
        patch = load_pixel(input, samples, num_samples, source, is_inside, height * width, channel, channels)
        sums = tl.dot(signal, patch, sums, input_precision=PRECISION)
    share = tl.program_id(1) * num_filters
    store_rows(gradient, sums, (share + rows) * taps + tap, rows < num_filters, channel, channels)


@triton.jit
def atomic_kernel(
    error,
    input,
    filters,
    gradient,
    num_samples,
    padded_samples,
    channels,
    num_selected,
    height,
    width,
    output_width,
    WINDOW: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Adds the contribution of one pixel and tap to `gradient[the pixel's filters, tap, channels]`."""
    taps = num_taps(WINDOW)
    slot_blocks = tl.cdiv(num_selected, ROWS)
    tap = tl.program_id(0) % taps
    slot = (tl.program_id(0) // taps % slot_blocks) * ROWS + tl.arange(0, ROWS)
    pixel = tl.program_id(0) // taps // slot_blocks
    channel = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    source, is_inside = read_pixel(pixel, tap, height, width, output_width, WINDOW)
    sums = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for step in range(tl.where(is_inside, tl.cdiv(num_samples, DEPTH), 0)):
        samples = step * DEPTH + tl.arange(0, DEPTH)
        signal = load_rows(error, pixel * num_selected + slot, slot < num_selected, samples, padded_samples)
        patch = load_pixel(input, samples, num_samples, source, is_inside, height * width, channel, channels)
        sums = tl.dot(signal, patch, sums, input_precision=PRECISION)
    # A tap outside the grid has nothing to add.
    is_slot = slot < tl.where(is_inside, num_selected, 0)
    chosen = tl.load(filters + pixel * num_selected + slot, mask=is_slot, other=0)
    tl.atomic_add(
        gradient + (chosen * taps + tap)[:, None] * channels + channel[None, :],
        sums,
        mask=is_slot[:, None] & (channel < channels)[None, :],
        sem="relaxed",
    )


def pack_error(error: torch.Tensor) -> torch.Tensor:
    """`(B, P, E * F)` with the samples innermost, `(P, E * F, padded samples)`; the padding is zero."""
    num_samples, num_pixels, num_selected = error.shape
    padded_samples = ceil_div(num_samples, SAMPLE_MULTIPLE) * SAMPLE_MULTIPLE
    packed = error.new_empty(num_pixels, num_selected, padded_samples)
    packed[:, :, :num_samples] = error.permute(1, 2, 0)
    packed[:, :, num_samples:] = 0.0
    return packed


def num_shares(num_pixels: int, num_programs: int) -> int:
    """Shares that the pixels are divided into, given the programs of one share."""
    return max(1, min(_ENOUGH_PROGRAMS // num_programs, num_pixels // _MIN_PIXELS_PER_PROGRAM))


def routed_conv_weight_gradient(
    error: torch.Tensor,
    input: torch.Tensor,
    filters: torch.Tensor,
    num_filters: int,
    problem: Problem,
    tile: Tile,
    *,
    is_atomic: bool = False,
) -> torch.Tensor:
    """The gradient `(X * F, taps, C)`, float32.

    Args:
        error: `(B, P, E * F)`.
        input: `(B, H * W, C)`.
        filters: Selected filters `(P, E * F)`.
        num_filters: X * F.
        problem: Grid, border and precision.
        tile: Block sizes.
        is_atomic: Use the kernel that is not deterministic.
    """
    num_samples, num_pixels, num_selected = error.shape
    channels = input.shape[2]
    packed = pack_error(error)
    channel_blocks = ceil_div(channels, tile.columns)
    options = problem.options(tile)
    geometry = (problem.height, problem.width, problem.output_width)
    if is_atomic:
        gradient = input.new_zeros(num_filters, problem.num_taps, channels, dtype=torch.float32)
        grid = (num_pixels * ceil_div(num_selected, tile.rows) * problem.num_taps, channel_blocks)
        launch(
            *(atomic_kernel, grid, packed, input, filters, gradient, num_samples, packed.shape[2], channels),
            *(num_selected, *geometry),
            **options,
        )
        return gradient
    num_programs = problem.num_taps * ceil_div(num_filters, tile.rows) * channel_blocks
    pixels_each = ceil_div(num_pixels, num_shares(num_pixels, num_programs))
    shares = ceil_div(num_pixels, pixels_each)
    gradient = input.new_empty(shares, num_filters, problem.num_taps, channels, dtype=torch.float32)
    slots = find_slots(filters.T[None], num_filters, channels_last=True)[0].T
    launch(
        *(masked_kernel, (num_programs, shares), packed, input, slots, gradient),
        *(num_samples, packed.shape[2], channels, num_filters, num_selected, num_pixels, pixels_each, *geometry),
        **options,
    )
    return gradient.sum(dim=0)
