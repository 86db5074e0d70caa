"""The nearest of many points on the sphere, exactly, by numpy alone."""

from __future__ import annotations

import numpy as np

_BLOCK = 256


def on_sphere(latitude: np.ndarray, longitude: np.ndarray) -> np.ndarray:
    """Points on the unit sphere, `(N, 3)`, from degrees of any shape."""
    phi, lam = np.deg2rad(latitude).ravel(), np.deg2rad(longitude).ravel()
    return np.stack([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)], axis=-1)


def nearest_points(points: np.ndarray, wanted: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The nearest points of each wanted one, nearest first; of several at one distance, the one with the least number.

    Points are sorted by height, and a wanted point is compared with those in a band around its own height. No point
    outside of a band is nearer than the edge of the band: where the last one found is farther than that, the band is
    doubled.

    Args:
        points: Points on the unit sphere, `(S, 3)`, at least `count`.
        wanted: Points on the unit sphere, `(T, 3)`.
        count: Number of points to find for each.

    Returns:
        Numbers of the points, `(T, count)`, and the lengths of the chords to them, `(T, count)`.
    """
    order = np.argsort(points[:, 2], kind="stable")
    ordered = points[order]
    heights = ordered[:, 2]
    numbers = np.empty((len(wanted), count), np.int64)
    squares = np.empty((len(wanted), count))
    first_margin = 2.0 * (heights[-1] - heights[0] + 1e-3) / np.sqrt(len(points))
    by_height = np.argsort(wanted[:, 2])
    for first in range(0, len(wanted), _BLOCK):
        rows, margin = by_height[first : first + _BLOCK], first_margin
        while len(rows):
            of_rows = wanted[rows]
            low = int(np.searchsorted(heights, of_rows[:, 2].min() - margin))
            high = int(np.searchsorted(heights, of_rows[:, 2].max() + margin, side="right"))
            is_all = low == 0 and high == len(points)
            if high - low < count and not is_all:
                margin *= 2.0
                continue
            # In the order of their numbers, so that of equal distances the least number comes first.
            band = np.sort(order[low:high])
            apart = np.maximum(2.0 - 2.0 * (of_rows @ points[band].T), 0.0)
            places = np.argpartition(apart, count - 1, axis=1)[:, :count] if count < apart.shape[1] else None
            places = np.arange(apart.shape[1])[None].repeat(len(rows), 0) if places is None else np.sort(places, axis=1)
            found = np.take_along_axis(apart, places, axis=1)
            by_distance = np.argsort(found, axis=1, kind="stable")
            numbers[rows] = band[np.take_along_axis(places, by_distance, axis=1)]
            squares[rows] = np.take_along_axis(found, by_distance, axis=1)
            is_done = is_all | (squares[rows, -1] <= margin**2)
            rows, margin = rows[~is_done], margin * 2.0
    return numbers, np.sqrt(squares)
