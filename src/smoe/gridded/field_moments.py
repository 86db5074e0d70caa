"""Mean and spread of every channel and pixel, from fields that are added block by block."""

from __future__ import annotations

import numpy as np

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
