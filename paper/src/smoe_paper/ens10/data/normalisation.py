"""Mean and standard deviation at each grid point over dates, as ENS-10 normalises: `(x - mean) / (std + 0.1)`.

The release takes them over all its dates, 1998 to 2017, including the test years; here they are taken over the
training years unless `released` is requested. The 0.1 is in the units of each variable, so that normalised humidity,
divergence and precipitation are far smaller than 1.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

OFFSET = 0.1

_FIELDS_PER_PIECE = 16


def point_statistics(open_fields: Callable[[], np.ndarray], rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and population standard deviation over time at each point, float32, `(H, W)` each.

    Missing values are ignored; a point without values gets the mean 0 and the standard deviation 0.

    Args:
        open_fields: Maps the fields `(T, H, W)`; called for a few of them at a time, so that few pages stay in memory.
        rows: Indices of the fields.
    """
    shape = open_fields().shape[1:]
    count, mean, squares = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for first in range(0, len(rows), _FIELDS_PER_PIECE):
        piece = np.asarray(open_fields()[rows[first : first + _FIELDS_PER_PIECE]], np.float64)
        is_there = ~np.isnan(piece)
        number = is_there.sum(axis=0)
        piece_mean = np.where(is_there, piece, 0.0).sum(axis=0) / np.maximum(number, 1)
        piece_squares = np.where(is_there, np.square(piece - piece_mean), 0.0).sum(axis=0)
        # Chan's update: a plain sum of squares would lose the digits in which geopotential varies.
        total = np.maximum(count + number, 1)
        distance = piece_mean - mean
        squares += piece_squares + np.square(distance) * count * number / total
        mean += distance * number / total
        count += number
    return mean.astype(np.float32), np.sqrt(squares / np.maximum(count, 1)).astype(np.float32)


def normalise(values: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Returns normalised values, float32; missing values become the mean, 0: sea surface temperature over land."""
    return np.nan_to_num((values - mean) / (std + np.float32(OFFSET)), nan=0.0)
