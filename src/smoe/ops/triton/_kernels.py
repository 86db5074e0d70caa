"""The routed convolution by sparse Triton kernels: one matrix product for each pixel, with that pixel's filters.

At an output pixel, `output[filter, sample] = sum over taps and channels of weight[filter, tap, channel] *
input[sample, tap's pixel, channel]`: the rows of the first operand are reached through the pixel's filter numbers, and
the batch gives the columns. Channels are contiguous in both operands, so that they are copied 16 bytes at a time.

The input gradient collects, at each input pixel, from the output pixels that read it. In the weight gradient a program
owns a block of filters and channels of one tap and walks over the pixels; a filter that is not selected at a pixel
contributes a row of zeros, so that the products are X / E times those that are needed. In all three no two programs
write to one place: the results are deterministic.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from smoe.ops._gather import fold_channels
from smoe.ops._operators import format_of
from smoe.ops.triton._choice import Direction, Tile, tile_for


class Launch(NamedTuple):
    """One launch of a kernel."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: dict[str, Any]


# Programs along the second and third axis of a grid, by CUDA; the first axis has room for 2^31 - 1.
MAX_PROGRAMS_ACROSS = 65_535

_recorded: list[Launch] | None = None


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Runs `kernel` on the device of its first argument; on a CPU, Triton's interpreter runs it.

    Multiplications and additions are fused unless `enable_fp_fusion=False` is given, whatever a version of Triton does
    by default.
    """
    if max(grid[1:], default=1) > MAX_PROGRAMS_ACROSS or grid[0] >= 2**31:
        raise ValueError(f"{kernel.__name__} has a grid of {grid}, larger than CUDA allows")
    options = {"enable_fp_fusion": True, **options}
    if _recorded is not None:
        _recorded.append(Launch(kernel, grid, arguments, options))
        return
    first: torch.Tensor = arguments[0]
    with torch.cuda.device(first.device) if first.is_cuda else contextlib.nullcontext():
        kernel[grid](*arguments, **options)


@contextlib.contextmanager
def record_launches() -> Iterator[list[Launch]]:
    """Collects the launches inside the context instead of running them; tensors may be on the meta device."""
    global _recorded
    before, _recorded = _recorded, []
    try:
        yield _recorded
    finally:
        _recorded = before


def ceil_div(size: int, block: int) -> int:
    """Number of blocks that cover `size` elements."""
    return -(-size // block)


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


class Window(NamedTuple):
    """What is known of a filter's window when a kernel is compiled."""

    height: int
    width: int
    stride: int
    wraps_rows: bool
    wraps_columns: bool
    row_tap_step: int
    column_tap_step: int


@triton.jit
def num_taps(WINDOW):
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


@dataclass(frozen=True)
class Problem:
    """A routed convolution apart from its tensors."""

    height: int
    width: int
    kernel_height: int
    kernel_width: int
    stride: int
    padding_mode: str
    precision: str

    @property
    def grid(self) -> tuple[int, int]:
        return (self.height - 1) // self.stride + 1, (self.width - 1) // self.stride + 1

    @property
    def num_taps(self) -> int:
        return self.kernel_height * self.kernel_width

    def options(self, tile: Tile) -> dict[str, Any]:
        """The compile-time constants of a kernel, and its warps and stages."""
        wraps_rows, wraps_columns = self.padding_mode == "circular", self.padding_mode != "zeros"
        # The distance of the taps that read an input pixel is the stride, unless an axis is periodic with a length that
        # is not a multiple of it.
        window = Window(
            *(self.kernel_height, self.kernel_width, self.stride, wraps_rows, wraps_columns),
            row_tap_step=self.stride if not wraps_rows or self.height % self.stride == 0 else 1,
            column_tap_step=self.stride if not wraps_columns or self.width % self.stride == 0 else 1,
        )
        return {
            "WINDOW": window,
            "PRECISION": self.precision,
            "ROWS": tile.rows,
            "COLUMNS": tile.columns,
            "DEPTH": tile.depth,
            "num_warps": tile.num_warps,
            "num_stages": tile.num_stages,
        }


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


def triton_routed_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    stride: int,
    padding_mode: str,
    *,
    tile: Tile | None = None,
) -> torch.Tensor:
    """The output by the sparse kernel, in the memory format of the input; arguments as the operator's.

    The routing is shared, `(1, E, P)`; `tile` replaces the blocks of `tile_for`.
    """
    problem = _problem(input, weight, stride, padding_mode)
    filters = filters_by_pixel(indices, expert_channels)
    (num_samples, channels), (num_pixels, num_rows) = input.shape[:2], filters.shape
    output = (input.new_empty if input.numel() else input.new_zeros)(num_samples, num_pixels, num_rows)
    if input.numel() > 0:
        tile = tile or _tile("forward", num_rows, num_samples, channels, input, problem)
        launch(
            *(forward_kernel, (num_pixels * ceil_div(num_rows, tile.rows) * ceil_div(num_samples, tile.columns),)),
            *(pixel_rows(input), _tap_rows(weight), filters, output, num_samples, channels, num_rows, num_pixels),
            *(problem.height, problem.width, problem.grid[1]),
            **problem.options(tile),
        )
    return _grid_of(output, problem.grid, format_of(input))


def triton_routed_conv2d_backward(
    error: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    stride: int,
    padding_mode: str,
    needs_input: bool,
    needs_weight: bool,
    *,
    tile: Tile | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients by the sparse kernels, each in the memory format of its tensor; one that is not needed is empty."""
    input_gradient, weight_gradient = input.new_empty(0), weight.new_empty(0)
    if error.numel() == 0 or input.numel() == 0:
        return (
            torch.zeros_like(input, memory_format=format_of(input)) if needs_input else input_gradient,
            torch.zeros_like(weight, memory_format=format_of(weight)) if needs_weight else weight_gradient,
        )
    problem = _problem(input, weight, stride, padding_mode)
    filters, signal = filters_by_pixel(indices, expert_channels), pixel_rows(error)
    (B, C), (num_pixels, num_selected) = input.shape[:2], filters.shape
    geometry = (problem.height, problem.width, problem.grid[1])
    if needs_input:
        chosen = tile or _tile("input_gradient", C, B, num_selected, input, problem)
        rows = error.new_empty(B, problem.height * problem.width, C)
        launch(
            *(input_gradient_kernel, (rows.shape[1] * ceil_div(C, chosen.rows) * ceil_div(B, chosen.columns),)),
            *(signal, _tap_rows(weight), filters, rows, B, C, num_selected, num_pixels, *geometry),
            **problem.options(chosen),
        )
        input_gradient = _grid_of(rows, (problem.height, problem.width), format_of(input))
    if needs_weight:
        X = weight.shape[0]
        chosen = tile or _tile("weight_gradient", X, C, B, input, problem)
        # The samples innermost, with zeros behind them.
        packed = error.new_zeros(num_pixels, num_selected, ceil_div(B, SAMPLE_MULTIPLE) * SAMPLE_MULTIPLE)
        packed[:, :, :B] = signal.permute(1, 2, 0)
        slots = filters.new_full((num_pixels, X), -1)
        numbers = torch.arange(num_selected, dtype=slots.dtype, device=slots.device).expand(num_pixels, -1)
        slots.scatter_(1, filters.long(), numbers)
        num_programs = problem.num_taps * ceil_div(X, chosen.rows) * ceil_div(C, chosen.columns)
        most_shares = max(1, min(_ENOUGH_PROGRAMS // num_programs, num_pixels // _MIN_PIXELS_PER_PROGRAM))
        pixels_each = ceil_div(num_pixels, most_shares)
        shares = ceil_div(num_pixels, pixels_each)
        rows = input.new_empty(shares, X, problem.num_taps, C, dtype=torch.float32)
        launch(
            *(masked_kernel, (num_programs, shares), packed, pixel_rows(input), slots, rows),
            *(B, packed.shape[2], C, X, num_selected, num_pixels, pixels_each, *geometry),
            **problem.options(chosen),
        )
        rows = rows.sum(dim=0).to(weight.dtype)
        weight_gradient = _grid_of(rows, (weight.shape[2], weight.shape[3]), format_of(weight))
    return input_gradient, weight_gradient


def filters_by_pixel(indices: torch.Tensor, expert_channels: int) -> torch.Tensor:
    """Filters selected at each pixel, `(P, E * F)`, from a shared routing `(1, E, P)`; an expert's F are adjacent."""
    return fold_channels(indices[0], expert_channels).T.contiguous()


def pixel_rows(values: torch.Tensor) -> torch.Tensor:
    """`(B, C, H, W)` as contiguous `(B, H * W, C)`; channels_last needs no copy."""
    return values.permute(0, 2, 3, 1).contiguous().flatten(1, 2)


def _tap_rows(weight: torch.Tensor) -> torch.Tensor:
    """`(X * F, C, kh, kw)` as contiguous `(X * F, taps, C)`."""
    return weight.permute(0, 2, 3, 1).contiguous().flatten(1, 2)


def _grid_of(rows: torch.Tensor, grid: tuple[int, int], memory_format: torch.memory_format) -> torch.Tensor:
    """`(B, P, C)` as `(B, C, *grid)` in a memory format; channels_last needs no copy."""
    result = rows.unflatten(1, grid).permute(0, 3, 1, 2).contiguous(memory_format=memory_format)
    # Dimensions of size 1 keep any stride, but compilers are promised those of a new tensor.
    promised = torch.empty(result.shape, device="meta").contiguous(memory_format=memory_format)
    return result.as_strided(result.shape, promised.stride())


def float32_precision() -> str:
    """How convolutions multiply float32 numbers, by PyTorch's own setting: `tf32` or `ieee`."""
    setting = getattr(torch.backends.cudnn, "conv", None)
    if setting is None:  # before torch 2.9
        return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"
    return "tf32" if setting.fp32_precision == "tf32" else "ieee"


def _problem(input: torch.Tensor, weight: torch.Tensor, stride: int, padding_mode: str) -> Problem:
    return Problem(
        *(input.shape[2], input.shape[3], weight.shape[2], weight.shape[3]),
        *(stride, padding_mode, float32_precision()),
    )


def _tile(direction: Direction, rows: int, columns: int, depth: int, input: torch.Tensor, problem: Problem) -> Tile:
    return tile_for(
        direction,
        rows=rows,
        columns=columns,
        depth=depth,
        bytes_each=input.element_size(),
        precision=problem.precision,
    )
