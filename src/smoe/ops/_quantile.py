"""The exact quantile of each sample, for any number of values and any floating dtype."""

from __future__ import annotations

import ctypes
import math

import torch

from smoe.ops._operators import library_for, num_threads, register_operator


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
    ranked = rows.sort(dim=1).values
    low, high = ranked[:, rank], ranked[:, min(rank + 1, rows.shape[1] - 1)]
    # Equal neighbours need no interpolation, and the difference of infinite ones is NaN.
    value = torch.where(low == high, low, low + fraction * (high - low)) if fraction > 0 else low
    return value.masked_fill(rows.isnan().any(dim=1), torch.nan)


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
