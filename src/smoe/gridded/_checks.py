"""What is wrong with fields that were read, and the mean and spread of every channel and pixel."""

from __future__ import annotations

import numpy as np

from smoe.errors import DataError
from smoe.gridded._source import FieldSource
from smoe.gridded._tables import FieldTable, describe_position

# Sums over few times in float32 keep the digits that float32 fields have; longer sums are in float64.
_MOST_ROWS = 64
_PIECE_BYTES = 1 << 25


class FieldMoments:
    """Count, sum and sum of squares at each pixel; missing values do not count.

    Values count relative to those of the first times: a plain sum of squares would lose the digits in which large
    values vary.

    Args:
        shape: Channels, rows and columns `(C, H, W)`.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count, self._sums, self._squares = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self._origin: np.ndarray | None = None
        self._dtype: type[np.floating] = np.float32
        row_bytes = 4 * int(np.prod(shape))
        self._num_rows = max(1, min(_MOST_ROWS, _PIECE_BYTES // max(row_bytes, 1)))

    def add(self, fields: np.ndarray) -> None:
        """Adds fields `(N, C, H, W)`, float32."""
        if self._origin is None:
            few = fields[: self._num_rows]
            number = (~np.isnan(few)).sum(axis=(0, 2, 3))
            middle = np.nansum(few, axis=(0, 2, 3), dtype=np.float64) / np.maximum(number, 1)
            total = np.add.reduce(few, axis=0, dtype=np.float64) / max(len(few), 1)
            self._origin = np.where(np.isnan(total), middle[:, None, None], total).astype(np.float32)
            sizes = np.fmax.reduce(np.abs(few), axis=(0, 2, 3))
            if not ((sizes > 1e-12) & (sizes < 1e15))[sizes > 0.0].all():
                # The squares of float32 would underflow or overflow.
                self._dtype = np.float64
        for first in range(0, len(fields), self._num_rows):
            self._add_piece(fields[first : first + self._num_rows] - self._origin)

    def _add_piece(self, distance: np.ndarray) -> None:
        total = np.add.reduce(distance, axis=0)
        if np.isnan(total).any():
            missing = np.isnan(distance)
            distance[missing] = 0.0
            total = np.add.reduce(distance, axis=0)
            self.count += len(distance) - missing.sum(axis=0)
        else:
            self.count += len(distance)
        self._sums += total
        self._squares += np.einsum("nchw,nchw->chw", distance, distance, dtype=self._dtype)

    @property
    def squares(self) -> np.ndarray:
        """Sum of squared deviations from the mean of the pixel, `(C, H, W)`."""
        return np.maximum(self._squares - np.square(self._sums) / np.maximum(self.count, 1.0), 0.0)

    def by_channel(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation over times and pixels, each `(C,)`; NaN for a channel without values."""
        count = self.count.sum(axis=(1, 2))
        safe = np.where(count > 0, count, np.nan)
        means = self._means()
        mean = (self.count * means).sum(axis=(1, 2)) / safe
        between = (self.count * np.square(means - mean[:, None, None])).sum(axis=(1, 2))
        return mean, np.sqrt((self.squares.sum(axis=(1, 2)) + between) / safe)

    def by_pixel(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation over times, each `(C, H, W)`; NaN at pixels without values."""
        safe = np.where(self.count > 0, self.count, np.nan)
        return np.where(self.count > 0, self._means(), np.nan), np.sqrt(self.squares / safe)

    def _means(self) -> np.ndarray:
        origin = 0.0 if self._origin is None else self._origin.astype(np.float64)
        return origin + self._sums / np.maximum(self.count, 1.0)


# Robust standard deviations from the median beyond which the values of a time may be wrong, and values to find these.
_FAR, _SAMPLED = 10.0, 200_000


def check_gaps(table: FieldTable, source: FieldSource, policy: str) -> None:
    """Refuses channels without any value, and gaps that change with time unless a policy is named.

    Args:
        table: Fields.
        source: Where they come from.
        policy: `refuse`; `drop` or `fill` allow gaps.

    Raises:
        DataError: With the variable, the first time and the number of values.
    """
    for number, channel in enumerate(table.channels):
        if table.always_missing[number].all():
            raise DataError(f"{channel.name} of {source.where} has no value at all: leave it out")
        if table.has_steady_gaps[number] or policy != "refuse":
            continue
        steady = int(table.always_missing[number].sum())
        rows = np.flatnonzero(table.num_missing[:, number] > steady)
        count = int(table.num_missing[rows[0], number]) - steady
        why = describe_invalid(source, channel.variable)
        raise DataError(
            f"{channel.name} of {source.where} has {count} missing values"
            f"{describe_position(source, int(table.positions[rows[0]]), channel)} that are there at other times, and "
            f"such gaps at {len(rows)} of {len(table)} times{f' ({why})' if why else ''}: set missing to 'drop' to "
            "leave these times out or to 'fill' to fill them"
        )


def describe_invalid(source: FieldSource, variable: str) -> str:
    """How many values of a variable are missing because they lie outside of its valid range; nothing if none are."""
    if variable not in source.num_invalid:
        return ""
    low, high = source.valid_ranges[variable]
    return f"{source.num_invalid[variable]} values lie outside of its valid range, {low:g} to {high:g}"


def has_gap(table: FieldTable) -> np.ndarray:
    """Whether a row has missing values beyond those that are missing at all rows, `(N,)`."""
    steady = table.always_missing.sum(axis=(1, 2))
    return (table.num_missing > steady).any(axis=1)


def find_outlier(table: FieldTable, source: FieldSource) -> str | None:
    """The value that is farthest from all others, if it is so far that it must be wrong; in words.

    Times with values beyond ten robust standard deviations from the median count if they are fewer than half, and each
    of them is farther from the values of the others than these are from each other: rain comes in all amounts.

    Args:
        table: Fields.
        source: Where they come from.
    """
    dynamic = [channel for channel in table.channels if not channel.is_static]
    for number, channel in enumerate(dynamic):
        lows, highs = table.lows[:, number], table.highs[:, number]
        values = table.values[:: max(1, len(table) // 16), number].ravel()
        values = values[:: max(1, values.size // _SAMPLED)].astype(np.float64)
        values = values[~np.isnan(values)]
        if not values.size:
            continue
        median = np.median(values)
        limit = _FAR * 1.4826 * np.median(np.abs(values - median))
        is_far = np.fmax(highs - median, median - lows) > limit
        is_usual = ~(is_far | np.isnan(lows))
        if limit == 0.0 or not is_far.any() or 2 * is_usual.sum() <= len(table):
            continue
        low, high = float(lows[is_usual].min()), float(highs[is_usual].max())
        distances = np.fmax(highs - high, low - lows)
        if distances[is_far].min() <= high - low:
            continue
        row = int(np.argmax(np.where(is_far, distances, -np.inf)))
        field = np.asarray(table.values[row, number], np.float64)
        is_outside = (field < low) | (field > high)
        worst = np.unravel_index(np.nanargmax(np.fmax(field - high, low - field)), field.shape)
        count = int(is_outside.sum())
        place = source.grid.describe_pixel(int(worst[0]), int(worst[1]))
        many = f" and {count - 1} more" if count > 1 else ""
        return (
            f"{channel.name} of {source.where} is {field[worst]:g}"
            f"{describe_position(source, int(table.positions[row]), channel)} at {place}{many}, where {low:g} to "
            f"{high:g} are usual at other times: correct such values, or mark them as missing"
        )
    return None
