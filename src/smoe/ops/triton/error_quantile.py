"""The exact quantile on a GPU: a radix selection by many thread blocks, without waiting for the host.

The bits of a float, with those of negative numbers inverted, are integers in the order of the floats. Four passes find
the integer of the wanted rank from its highest byte to its lowest: each counts the next byte of the values that begin
with the bytes found so far. A fifth pass finds the next larger value, for the interpolation. All counts are integers,
so that the atomic additions give the same result in any order.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from smoe.ops.triton.blocks import block_and_sample
from smoe.ops.triton.launch import ceil_div, launch

_VALUES_PER_STEP = 1024
_STEPS_PER_PROGRAM = 16

# Columns of the table of a row's state.
_PREFIX, _RANK, _HAS_EQUAL, _ABOVE, _HAS_NAN = (tl.constexpr(column) for column in range(5))
_NUM_COLUMNS = 5
_LARGEST_KEY = tl.constexpr(2**31 - 1)


@triton.jit
def ordered_key(values):
    """Signed integers in the order of float32 values; -0 becomes +0, which it equals."""
    values = tl.where(values == 0.0, 0.0, values)
    bits = values.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def count_kernel(
    values, state, counts, num_values, num_steps, SHIFT: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr
):
    """Adds to `counts[row, digit]` the number of values in this program's share whose byte at `SHIFT` is the digit."""
    num_shares = tl.cdiv(num_values, num_steps * BLOCK)
    share, row = block_and_sample(num_shares)
    prefix = tl.load(state + row * COLUMNS + _PREFIX)
    digits = tl.arange(0, 256)
    total = tl.zeros((256,), dtype=tl.int32)
    has_nan = 0
    for step in range(num_steps):
        offsets = (share * num_steps + step) * BLOCK + tl.arange(0, BLOCK)
        loaded = tl.load(values + row * num_values + offsets, mask=offsets < num_values, other=0.0).to(tl.float32)
        # With the sign inverted, the bytes of the key are digits of an unsigned number.
        key = (ordered_key(loaded) ^ -0x80000000).to(tl.uint32, bitcast=True)
        is_candidate = offsets < num_values
        if SHIFT < 24:
            is_candidate = is_candidate & ((key >> (SHIFT + 8)).to(tl.int32) == prefix)
        else:
            has_nan = tl.maximum(has_nan, tl.max((loaded != loaded).to(tl.int32), axis=0))
        total += tl.histogram(((key >> SHIFT) & 255).to(tl.int32), 256, mask=is_candidate)
    tl.atomic_add(counts + row * 256 + digits, total, mask=total > 0, sem="relaxed")
    if SHIFT == 24:
        tl.atomic_max(state + row * COLUMNS + _HAS_NAN, has_nan, sem="relaxed")


@triton.jit
def pick_kernel(state, counts, COLUMNS: tl.constexpr):
    """Appends the digit of the wanted rank to the prefix of a row, and clears the counts for the next digit."""
    row = tl.program_id(0)
    digits = tl.arange(0, 256)
    found = tl.load(counts + row * 256 + digits)
    below_or_at = tl.cumsum(found, axis=0)
    rank = tl.load(state + row * COLUMNS + _RANK)
    is_below = below_or_at <= rank
    digit = tl.sum(is_below.to(tl.int32), axis=0)
    rank -= tl.max(tl.where(is_below, below_or_at, 0), axis=0)
    prefix = tl.load(state + row * COLUMNS + _PREFIX)
    tl.store(state + row * COLUMNS + _PREFIX, (prefix << 8) | digit)
    tl.store(state + row * COLUMNS + _RANK, rank)
    # After the last digit: whether the following rank has the same value.
    at_digit = tl.sum(tl.where(digits == digit, found, 0), axis=0)
    tl.store(state + row * COLUMNS + _HAS_EQUAL, (rank + 1 < at_digit).to(tl.int32))
    tl.store(counts + row * 256 + digits, tl.zeros((256,), dtype=tl.int32))


@triton.jit
def above_kernel(values, state, num_values, num_steps, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """Finds the smallest key above the one that was found, in this program's share of a row."""
    num_shares = tl.cdiv(num_values, num_steps * BLOCK)
    share, row = block_and_sample(num_shares)
    found = tl.load(state + row * COLUMNS + _PREFIX) ^ -0x80000000
    smallest = tl.full((BLOCK,), _LARGEST_KEY, dtype=tl.int32)
    for step in range(num_steps):
        offsets = (share * num_steps + step) * BLOCK + tl.arange(0, BLOCK)
        loaded = tl.load(values + row * num_values + offsets, mask=offsets < num_values, other=0.0).to(tl.float32)
        key = ordered_key(loaded)
        smallest = tl.minimum(smallest, tl.where((offsets < num_values) & (key > found), key, _LARGEST_KEY))
    tl.atomic_min(state + row * COLUMNS + _ABOVE, tl.min(smallest, axis=0), sem="relaxed")


@triton.jit
def interpolate_kernel(state, result, fraction, COLUMNS: tl.constexpr):
    """Writes the quantile of a row: between the value that was found and the next, or NaN."""
    row = tl.program_id(0)
    found = tl.load(state + row * COLUMNS + _PREFIX) ^ -0x80000000
    above = tl.load(state + row * COLUMNS + _ABOVE)
    above = tl.where(tl.load(state + row * COLUMNS + _HAS_EQUAL) > 0, found, above)
    low = tl.where(found < 0, found ^ 0x7FFFFFFF, found).to(tl.float32, bitcast=True)
    high = tl.where(above < 0, above ^ 0x7FFFFFFF, above).to(tl.float32, bitcast=True)
    # Equal neighbours need no interpolation, and the difference of infinite ones is NaN.
    value = tl.where((low == high) | (fraction == 0.0), low, low + fraction * (high - low))
    value = tl.where(tl.load(state + row * COLUMNS + _HAS_NAN) > 0, float("nan"), value)
    tl.store(result + row, value)


def triton_error_quantile(errors: torch.Tensor, quantile: float) -> torch.Tensor:
    """The quantile of each sample `(B,)`, float32, from errors `(B, ...)` in float32 or half precision."""
    rows = errors.flatten(1).contiguous()
    num_rows, num_values = rows.shape
    position = quantile * (num_values - 1)
    rank = math.floor(position)
    result = torch.empty(num_rows, dtype=torch.float32, device=rows.device)
    if num_rows == 0:
        return result
    state = torch.zeros(num_rows, _NUM_COLUMNS, dtype=torch.int32, device=rows.device)
    state[:, _RANK.value] = rank
    state[:, _ABOVE.value] = _LARGEST_KEY.value
    counts = torch.zeros(num_rows, 256, dtype=torch.int32, device=rows.device)
    num_steps = min(ceil_div(num_values, _VALUES_PER_STEP), _STEPS_PER_PROGRAM)
    shares = ceil_div(num_values, _VALUES_PER_STEP * num_steps)
    columns, block = {"COLUMNS": _NUM_COLUMNS}, {"BLOCK": _VALUES_PER_STEP}
    for shift in (24, 16, 8, 0):
        sizes = (num_values, num_steps)
        launch(count_kernel, (shares * num_rows,), rows, state, counts, *sizes, SHIFT=shift, **columns, **block)
        launch(pick_kernel, (num_rows,), state, counts, **columns)
    launch(above_kernel, (shares * num_rows,), rows, state, num_values, num_steps, **columns, **block)
    # Without fused multiply-adds, the interpolation rounds as PyTorch's separate operations do.
    launch(interpolate_kernel, (num_rows,), state, result, position - rank, **columns, enable_fp_fusion=False)
    return result
