"""Mean and spread of every channel and pixel, from fields that are added block by block in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass
class FieldMoments:
    """Count, mean and sum of squared deviations at each pixel; missing values do not count.

    Attributes:
        count: Number of values, `(C, H, W)`.
        mean: Mean, 0 where there is no value.
        squares: Sum of squared deviations from the mean.
    """

    count: np.ndarray
    mean: np.ndarray
    squares: np.ndarray

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> FieldMoments:
        """Moments of nothing, for fields of shape `(C, H, W)`."""
        return cls(np.zeros(shape), np.zeros(shape), np.zeros(shape))

    def add(self, fields: np.ndarray) -> None:
        """Adds fields `(N, C, H, W)`."""
        values = fields.astype(np.float64)
        is_there = ~np.isnan(values)
        count = is_there.sum(axis=0).astype(np.float64)
        safe = np.maximum(count, 1.0)
        mean = np.where(is_there, values, 0.0).sum(axis=0) / safe
        squares = np.where(is_there, np.square(values - mean), 0.0).sum(axis=0)
        total = self.count + count
        distance = np.where(count > 0, mean - self.mean, 0.0)
        # A plain sum of squares would lose the digits in which large values vary.
        self.squares += squares + np.square(distance) * self.count * count / np.maximum(total, 1.0)
        self.mean += distance * count / np.maximum(total, 1.0)
        self.count = total

    def by_channel(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation over times and pixels, each `(C,)`; NaN for a channel without values."""
        count = self.count.sum(axis=(1, 2))
        safe = np.where(count > 0, count, np.nan)
        mean = (self.count * self.mean).sum(axis=(1, 2)) / safe
        between = (self.count * np.square(self.mean - mean[:, None, None])).sum(axis=(1, 2))
        return mean, np.sqrt((self.squares.sum(axis=(1, 2)) + between) / safe)

    def by_pixel(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation over times, each `(C, H, W)`; NaN at pixels without values."""
        safe = np.where(self.count > 0, self.count, np.nan)
        return np.where(self.count > 0, self.mean, np.nan), np.sqrt(self.squares / safe)
