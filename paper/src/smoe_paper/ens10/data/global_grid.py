"""Identifies the grid of an ensemble. Rows run from north to south, as in ENS-10; columns from 0 eastwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smoe.errors import DataError
from smoe.gridded.grid import Grid
from smoe_paper.atmosphere.axes import LATITUDE_NAMES, LONGITUDE_NAMES, Orientation, find_axis, find_orientation

if TYPE_CHECKING:
    import xarray as xr

ENS10_GRID = Grid(tuple(90.0 - 0.5 * row for row in range(361)), tuple(0.5 * column for column in range(720)))

_TOLERANCE_DEGREES = 1e-3


@dataclass(frozen=True)
class GlobalGrid:
    """The common grid of all files of a data set; `grid.latitude` runs from north to south."""

    grid: Grid

    def orientation(self, array: xr.DataArray, where: str) -> Orientation:
        """Returns the orientation of a field of a file relative to this grid.

        Raises:
            DataError: If the grid is another one.
        """
        return find_orientation(array, Grid(self.grid.latitude[::-1], self.grid.longitude), where)


def turn(fields: np.ndarray, orientation: Orientation) -> np.ndarray:
    """Returns fields `(..., H, W)` from north to south and eastwards from longitude 0, contiguous float32."""
    return np.ascontiguousarray(orientation.turn(fields)[..., ::-1, :])


def find_global_grid(array: xr.DataArray, where: str) -> GlobalGrid:
    """Returns the grid of a data set's first field: ENS-10's, or any regular global grid.

    Raises:
        DataError: If the rows are not symmetric about the equator, or the columns are not evenly spaced on the circle.
    """
    rows = np.sort(np.asarray(array[find_axis(array, LATITUDE_NAMES, where)].values, np.float64))[::-1]
    columns = np.sort(np.mod(np.asarray(array[find_axis(array, LONGITUDE_NAMES, where)].values, np.float64), 360.0))
    return GlobalGrid(check_global(rows, columns, where))


def check_global(rows: np.ndarray, columns: np.ndarray, where: str) -> Grid:
    """Returns the grid of descending latitudes and ascending longitudes if it is global."""
    if len(rows) > 1 and len(columns) > 1:
        spacing = 360.0 / len(columns)
        is_even = np.max(np.abs(columns - spacing * np.arange(len(columns)))) <= _TOLERANCE_DEGREES
        is_symmetric = np.max(np.abs(rows + rows[::-1])) <= _TOLERANCE_DEGREES
        reaches_poles = 90.0 - rows[0] <= 1.5 * abs(rows[0] - rows[1])
        if is_even and is_symmetric and reaches_poles:
            if (len(rows), len(columns)) == ENS10_GRID.shape:
                return ENS10_GRID
            return Grid(tuple(map(float, rows)), tuple(map(float, columns)))
    raise DataError(
        f"{where} is on another grid: {len(rows)} latitudes from {rows[0]:g} to {rows[-1]:g} and {len(columns)} "
        f"longitudes from {columns[0]:g} to {columns[-1]:g}, expected ENS-10's 361 x 720 (90 to -90, 0 to 359.5) or "
        "another that covers the globe evenly; regrid it first"
    )
