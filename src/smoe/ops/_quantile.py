"""The exact quantile of each sample, for any number of values and any floating dtype."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import torch

from smoe.ops._operators import library_for, num_threads, register_operator

# Off the CPU, rows up to this size are sorted. An estimate: it was not measured on a GPU.
_MAX_SORTED = 2**14


def error_quantile(errors: torch.Tensor, quantile: float) -> torch.Tensor:
    """The `quantile` of each sample over all its other dimensions, with linear interpolation. It has no gradient.

    Equal to `torch.quantile`, which sorts, refuses half precision and stops at 2^24 elements.

    Args:
        errors: Values `(B, ...)` with at least one element per sample.
        quantile: Quantile in [0, 1].

    Returns:
        `(B,)`, in float32 for half-precision errors and in their own dtype otherwise. The quantile of a sample that
        holds a NaN is NaN, wherever the NaN would rank.
    """
    if not 0.0 <= quantile <= 1.0:
        raise ValueError(f"quantile must be in [0, 1], got {quantile}")
    if errors.ndim < 2 or errors[:1].numel() == 0:
        raise ValueError(f"errors must be (B, ...) with at least one element per sample, got {tuple(errors.shape)}")
    return _error_quantile(errors.detach(), quantile)


def _dense(errors: torch.Tensor, quantile: float) -> torch.Tensor:
    rows = _at_least_float32(errors).flatten(1)
    position = quantile * (rows.shape[1] - 1)
    rank = math.floor(position)
    fraction = position - rank
    if rows.device.type == "cpu" and not torch.compiler.is_compiling():
        low, high = _partition_rows(rows, rank)
    elif rows.shape[1] <= _MAX_SORTED:
        low, high = sort_rows(rows, rank)
    else:
        low, high = select_ranks(rows, rank)
    # Equal neighbours need no interpolation, and the difference of infinite ones is NaN.
    value = torch.where(low == high, low, low + fraction * (high - low)) if fraction > 0 else low
    return value.masked_fill(rows.isnan().any(dim=1), torch.nan)


def _partition_rows(rows: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As `select_ranks`, on the host."""
    values = rows.numpy()
    # A layer that has learned most pixels leaves most errors exactly zero, and on so many equal values the selection
    # below takes ten times as long. Where they reach beyond the rank, counting them is enough. (NaN equals nothing.)
    low = values.min(axis=1)
    high = low.copy()
    is_open = np.count_nonzero(values == low[:, None], axis=1) <= rank + 1
    if is_open.any():
        # numpy's introselect is six times faster than torch.kthvalue on a CPU. NaN ranks last, so the minimum to the
        # right of the pivot is NaN exactly if the row holds one there.
        partitioned = np.partition(values[is_open], rank, axis=1)
        low[is_open] = partitioned[:, rank]
        high[is_open] = partitioned[:, rank + 1 :].min(axis=1) if rank + 1 < rows.shape[1] else low[is_open]
    return torch.from_numpy(low), torch.from_numpy(high)


def sort_rows(rows: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As `select_ranks`, by sorting: a few kernels in place of a hundred, which small rows are too short for."""
    ranked = rows.sort(dim=1).values
    return ranked[:, rank], ranked[:, min(rank + 1, rows.shape[1] - 1)]


def select_ranks(rows: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The values of rank `rank` and `rank + 1` of each row, counted from 0, by radix selection.

    The digits of the result, bytes of its bit pattern, are found from the highest to the lowest. A pass writes one byte
    for each value, its digit if it still can be the result, and halves the range of digits eight times by counting.
    No value is read on the host, nothing is moved or added atomically, and the result is exact and deterministic.
    (`torch.kthvalue` works on a GPU with one thread block for a row, and is not deterministic there.)

    Args:
        rows: float32 or float64 `(B, N)`. Rows with a NaN have no meaningful result.
        rank: Rank in [0, N - 1]. The value of rank N is that of rank N - 1.

    Returns:
        Two tensors `(B,)`.
    """
    keys = _ordered_keys(rows)
    num_bytes = keys.element_size()
    # The highest byte is signed: its order is that of bytes after an offset of 128.
    found = torch.zeros_like(keys[:, :1])
    remaining = torch.full_like(found, rank, dtype=torch.int64)
    is_candidate = torch.ones_like(keys, dtype=torch.bool)
    for byte in reversed(range(num_bytes)):
        offset = 128 if byte == num_bytes - 1 else 0
        digits = ((keys >> (8 * byte)) + offset).bitwise_and_(255).to(torch.uint8)
        # No digit is counted as below any bound if it is 255.
        candidates = digits.masked_fill(~is_candidate, 255)
        digit, num_below = _bisect_digit(candidates, remaining)
        remaining = remaining - num_below
        is_candidate = is_candidate & (digits == digit)
        found = found + ((digit.to(keys.dtype) - offset) << (8 * byte))
    has_equal = (keys <= found).sum(dim=1, keepdim=True) > rank + 1
    largest = torch.iinfo(keys.dtype).max
    above = keys.masked_fill(keys <= found, largest).amin(dim=1, keepdim=True)
    is_last = rank + 1 >= rows.shape[1]
    following = found if is_last else torch.where(has_equal, found, above)
    return _from_keys(found, rows.dtype)[:, 0], _from_keys(following, rows.dtype)[:, 0]


def _bisect_digit(candidates: torch.Tensor, rank: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The digit of rank `rank` of each row, and the number of smaller ones; int64 `(B, 1)` both."""
    digit, num_below = torch.zeros_like(rank), torch.zeros_like(rank)
    for bit in reversed(range(8)):
        middle = digit + (1 << bit)
        count = (candidates < middle.to(torch.uint8)).sum(dim=1, keepdim=True)
        is_above = count <= rank
        digit = torch.where(is_above, middle, digit)
        num_below = torch.where(is_above, count, num_below)
    return digit, num_below


def _ordered_keys(rows: torch.Tensor) -> torch.Tensor:
    """Integers in the order of the values."""
    # -0 becomes +0, which it equals.
    bits = (rows + 0.0).view(torch.int32 if rows.dtype == torch.float32 else torch.int64)
    return _flip_negative(bits)


def _from_keys(keys: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return _flip_negative(keys).view(dtype)


def _flip_negative(bits: torch.Tensor) -> torch.Tensor:
    """Bits of a float to an ordered integer and back: of negative numbers, all bits but the sign are inverted."""
    info = torch.iinfo(bits.dtype)
    return torch.where(bits < 0, bits ^ info.max, bits)


def _native(errors: torch.Tensor, quantile: float) -> torch.Tensor:
    errors = _at_least_float32(errors)
    library = library_for(errors)
    if library is None:
        return _dense(errors, quantile)
    rows = errors.flatten(1).contiguous()
    result = rows.new_empty(rows.shape[0])
    sizes = (rows.shape[0], rows.shape[1])
    library.call("smoe_error_quantile", rows, *sizes, ctypes.c_double(quantile), result, num_threads())
    return result


def _fake(errors: torch.Tensor, quantile: float) -> torch.Tensor:
    del quantile
    is_half = errors.dtype in (torch.float16, torch.bfloat16)
    return errors.new_empty(errors.shape[0], dtype=torch.float32 if is_half else errors.dtype)


def _at_least_float32(errors: torch.Tensor) -> torch.Tensor:
    return errors.float() if errors.dtype in (torch.float16, torch.bfloat16) else errors


_error_quantile = register_operator(
    "error_quantile(Tensor errors, float quantile) -> Tensor", dense=_dense, native=_native, fake=_fake
)
