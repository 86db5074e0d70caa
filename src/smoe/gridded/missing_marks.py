"""Numbers that stand for missing values in files that do not declare them."""

from __future__ import annotations

import numpy as np

# Those that programs write: CMIP, the NetCDF library, GrADS, and usual ones by hand. Not 9999, a usual largest value.
_MARKS = np.asarray(
    [1e20, -1e20, 9.969209968386869e36, 1e30, -1e30, 1e34, -1e34, 9.999e20, -9.99e8, -999.0, -9999.0, -99999.0,
     -32768.0, -32767.0], np.float32,
)  # fmt: skip


def find_mark(fields: np.ndarray) -> tuple[int, float] | None:
    """The first channel with a number that is not a value but a mark, and that number.

    A mark is one of the usual numbers, if it is farther from all other values than these are from each other.

    Args:
        fields: Fields `(N, C, H, W)`; NaN is missing.
    """
    for channel in range(fields.shape[1]):
        values = fields[:, channel]
        for end in (np.fmin.reduce(values, axis=None), np.fmax.reduce(values, axis=None)):
            if (end == _MARKS).any() and _is_apart(values, end):
                return channel, float(end)
    return None


def _is_apart(values: np.ndarray, mark: np.floating) -> bool:
    others = values[~(np.isnan(values) | (values == mark))]
    if not others.size:
        return False
    low, high = float(others.min()), float(others.max())
    return min(abs(float(mark) - low), abs(float(mark) - high)) > high - low
