"""Fields without time: their plausible values, and those that follow from the grid."""

from __future__ import annotations

import numpy as np

from smoe.errors import DataError
from smoe.gridded.grid import Grid

_BOUNDS = {"lsm": (-0.01, 1.01), "orography": (-1.0e3, 9.0e3), "slt": (-0.01, 10.0)}


def grid_constant(name: str, grid: Grid) -> np.ndarray | None:
    """Returns `lat2d` or `lon2d` of a grid, float32, `(H, W)`; None for another name."""
    return {"lat2d": grid.lat2d, "lon2d": grid.lon2d}[name]() if name in ("lat2d", "lon2d") else None


def check_constant(field: np.ndarray, name: str, where: str) -> np.ndarray:
    """Returns the field if it is finite and plausible."""
    if not np.isfinite(field).all():
        raise DataError(f"{where} has {int((~np.isfinite(field)).sum())} of {field.size} values missing")
    low, high = _BOUNDS.get(name, (-np.inf, np.inf))
    if field.min() < low or field.max() > high:
        raise DataError(
            f"{where} has values from {field.min():g} to {field.max():g}, which cannot be {name} "
            f"(between {low:g} and {high:g}): the unit is another or the file is damaged"
        )
    return field
