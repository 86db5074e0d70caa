"""Bilinear interpolation between two grids of latitudes and longitudes, regional or global."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from smoe.errors import DataError
from smoe.gridded.horizontal_grid import HorizontalGrid
from smoe.gridded.inverse_distance import InverseDistance

Interpolation = Callable[[np.ndarray], np.ndarray]
"""Turns fields `(..., H, W)` of one grid into fields `(..., H', W')` of another."""


def make_regridding(source: HorizontalGrid, target: HorizontalGrid) -> Interpolation:
    """The interpolation between two grids: bilinear between rows and columns, else by inverse distance.

    Raises:
        DataError: If a grid has neither, or the target reaches beyond the source.
    """
    if source.kind == target.kind == "rotated" and not source.has_pole_of(target):
        raise DataError(f"{source.difference(target)}: regrid one of them first, for example by xesmf or cdo")
    if source.kind == target.kind and source.kind in ("latitude-longitude", "rotated"):
        return Regridding(source, target)
    return InverseDistance(source, target)


class Regridding:
    """Weights of the interpolation from one grid to another.

    A pixel is interpolated along rows, then along columns. Missing values spread to the pixels that they have weight
    in. The target grid may reach beyond the source grid by half a step; there the nearest values hold.

    Args:
        source: Grid of the fields; its longitudes may close the circle.
        target: Grid to interpolate to.

    Raises:
        DataError: If a grid has no rows and columns of latitudes and longitudes, or the target reaches further.
    """

    def __init__(self, source: HorizontalGrid, target: HorizontalGrid) -> None:
        for grid in (source, target):
            if grid.kind not in ("latitude-longitude", "rotated") or source.kind != target.kind:
                raise DataError(
                    f"regridding works between grids of latitudes and longitudes, got {source.describe()} and "
                    f"{target.describe()}: regrid one of them first, for example by xesmf or cdo"
                )
        self.target = target
        self._rows = _weights(source.rows, target.rows, f"{target.describe()} is not inside of {source.describe()}")
        columns, self._wraps = source.columns, source.closes_circle
        wanted = columns[0] + np.mod(target.columns - columns[0] + 1e-6, 360.0) - 1e-6
        if self._wraps:
            columns = np.append(columns, columns[0] + 360.0)
        else:
            # West of the first column by less than half a step, not east of the last one by nearly a turn.
            wanted = np.where(wanted - columns[-1] > 0.5 * (360.0 - (columns[-1] - columns[0])), wanted - 360.0, wanted)
        self._columns = _weights(columns, wanted, f"{target.describe()} is not inside of {source.describe()}")

    def __call__(self, fields: np.ndarray) -> np.ndarray:
        """Fields `(..., H, W)` to `(..., H', W')`, float32, computed in float64."""
        values = fields.astype(np.float64)
        low, share = self._rows
        values = _mix(values[..., low, :], values[..., low + 1, :], share[:, None])
        if self._wraps:
            values = np.concatenate([values, values[..., :1]], axis=-1)
        low, share = self._columns
        return _mix(values[..., low], values[..., low + 1], share).astype(np.float32)


def _weights(axis: np.ndarray, points: np.ndarray, complaint: str) -> tuple[np.ndarray, np.ndarray]:
    if len(axis) < 2:
        raise DataError(f"a grid with {len(axis)} rows or columns cannot be interpolated")
    margin = 0.5 * float(np.median(np.diff(axis))) + 1e-6
    if points.min() < axis[0] - margin or points.max() > axis[-1] + margin:
        raise DataError(f"{complaint}: cut the target, or give inputs that cover it")
    low = np.clip(np.searchsorted(axis, points, side="right") - 1, 0, len(axis) - 2)
    return low, np.clip((points - axis[low]) / (axis[low + 1] - axis[low]), 0.0, 1.0)


def _mix(low: np.ndarray, high: np.ndarray, share: np.ndarray) -> np.ndarray:
    # Where a point coincides with a neighbour, the other one does not count, even if it is NaN.
    mixed = low * (1.0 - share) + high * share
    return np.where(share == 0.0, low, np.where(share == 1.0, high, mixed))
