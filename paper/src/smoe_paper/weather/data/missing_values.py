"""Refuses missing values with their place and number, or replaces them by a chosen policy."""

from __future__ import annotations

import numpy as np

from smoe.errors import DataError
from smoe.gridded.grid import Grid
from smoe.gridded.statistics import PRECIPITATION, PRECIPITATION_EPSILON, STEPS_PER_PIECE
from smoe_paper.weather.data.store_format import NaNPolicy


def replace_missing(
    channel: str, values: np.ndarray, times: np.ndarray, grid: Grid, on_nan: NaNPolicy
) -> tuple[np.ndarray, int]:
    """Applies the policy to the values `(T, H, W)` of a channel.

    With the policy `mean` NaNs stay, because the mean is not known here.

    Returns:
        The values, and the number of NaNs that the policy replaces.

    Raises:
        DataError: If a value is infinite, precipitation has no logarithm, or the policy does not cover a NaN.
    """
    num_missing = 0
    for first in range(0, len(values), STEPS_PER_PIECE):
        piece = values[first : first + STEPS_PER_PIECE]
        is_wrong = np.isinf(piece)
        if channel == PRECIPITATION:
            is_wrong |= piece <= -PRECIPITATION_EPSILON
        if is_wrong.any():
            place, value = _first_place(is_wrong, times[first:], grid), piece[is_wrong][0]
            raise DataError(f"{channel} is {value:g} at {place}, which no policy covers: repair the file")
        num_missing += int(np.isnan(piece).sum())
    if not num_missing or on_nan == "mean":
        return values, num_missing
    if on_nan == "zero" or (on_nan == "zero-tisr" and channel == "tisr"):
        return np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf), num_missing
    year = str(times[0].astype("datetime64[Y]"))
    raise DataError(
        f"{channel} holds {num_missing:,} NaN in {year}, {num_missing / values.size:.2%} of its values, the first at "
        f"{_first_place(np.isnan(values), times, grid)}: repair the file, leave the channel out of --channels, or "
        "choose what replaces them with --on-nan"
    )


def _first_place(is_there: np.ndarray, times: np.ndarray, grid: Grid) -> str:
    step, row, column = np.unravel_index(int(is_there.argmax()), is_there.shape)
    time = times[step].astype("datetime64[h]")
    return f"{time} h, latitude {grid.latitude[row]:g}, longitude {grid.longitude[column]:g}"
