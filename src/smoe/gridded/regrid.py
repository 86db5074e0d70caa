"""Bilinear regridding of a regular global field, as WeatherBench was made from ERA5."""

from __future__ import annotations

import numpy as np

from smoe.errors import DataError
from smoe.gridded.grid import Grid


def regrid(fields: np.ndarray, latitude: np.ndarray, longitude: np.ndarray, grid: Grid) -> np.ndarray:
    """Interpolates linearly in latitude and in longitude.

    Longitude is periodic. Where the fields have no row at a pole, the mean of the row next to it stands there; for the
    components of a wind, which turn around a pole, that is crude. A NaN spreads to the points that it has weight in.

    Args:
        fields: `(..., rows, columns)`.
        latitude: Of the rows in degrees, ascending or descending, any spacing, `(rows,)`.
        longitude: Of the columns in degrees, ascending, all around the globe, from anywhere, `(columns,)`.
        grid: Where to.

    Returns:
        Fields at the grid's points in the dtype of `fields`, computed in float64, `(..., H, W)`.
    """
    fields = np.asarray(fields)
    latitude, longitude = np.asarray(latitude, np.float64), np.asarray(longitude, np.float64)
    if fields.ndim < 2 or fields.shape[-2:] != (latitude.size, longitude.size):
        raise DataError(
            f"fields have the shape {fields.shape}, expected (..., {latitude.size}, {longitude.size}) as the axes say"
        )
    values = fields.astype(np.float64)
    if latitude.size < 2 or longitude.size < 2:
        raise DataError(f"a field of {latitude.size} x {longitude.size} points cannot be interpolated")
    if latitude[0] > latitude[-1]:
        latitude, values = latitude[::-1], values[..., ::-1, :]
    _check_axes(latitude, longitude)

    latitude, values = _with_poles(latitude, values)
    low, share = _neighbours(latitude, np.asarray(grid.latitude))
    values = _mix(values[..., low, :], values[..., low + 1, :], share[:, None])

    # Columns one turn further east close the circle.
    start = longitude[0]
    around = np.append(longitude, start + 360.0)
    values = np.concatenate([values, values[..., :1]], axis=-1)
    low, share = _neighbours(around, start + np.mod(np.asarray(grid.longitude) - start, 360.0))
    return _mix(values[..., low], values[..., low + 1], share).astype(fields.dtype)


def _check_axes(latitude: np.ndarray, longitude: np.ndarray) -> None:
    if not (np.diff(latitude) > 0).all() or latitude[0] < -90.0 or latitude[-1] > 90.0:
        raise DataError("latitudes must ascend or descend strictly within [-90, 90]")
    steps = np.diff(np.append(longitude, longitude[0] + 360.0))
    if not (steps > 0).all():
        raise DataError("longitudes must ascend strictly, by less than 360 degrees in all")
    if steps[-1] > 1.5 * steps[:-1].max():
        raise DataError(f"longitudes from {longitude[0]:g} to {longitude[-1]:g} leave out a part of the globe")
    widest = 1.5 * np.diff(latitude).max()
    if latitude[0] + 90.0 > widest or 90.0 - latitude[-1] > widest:
        raise DataError(f"latitudes from {latitude[0]:g} to {latitude[-1]:g} leave out a part of the globe")


def _with_poles(latitude: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    for pole, row in ((-90.0, 0), (90.0, -1)):
        if latitude[row] == pole:
            continue
        mean = np.broadcast_to(values[..., row, :].mean(-1)[..., None, None], (*values.shape[:-2], 1, values.shape[-1]))
        order = [mean, values] if row == 0 else [values, mean]
        values = np.concatenate(order, axis=-2)
        latitude = np.insert(latitude, 0, pole) if row == 0 else np.append(latitude, pole)
    return latitude, values


def _neighbours(axis: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    low = np.clip(np.searchsorted(axis, points, side="right") - 1, 0, len(axis) - 2)
    return low, (points - axis[low]) / (axis[low + 1] - axis[low])


def _mix(low: np.ndarray, high: np.ndarray, share: np.ndarray) -> np.ndarray:
    # Where a point coincides with a neighbour, the other one has no say, be it NaN.
    mixed = low * (1.0 - share) + high * share
    return np.where(share == 0.0, low, np.where(share == 1.0, high, mixed))
