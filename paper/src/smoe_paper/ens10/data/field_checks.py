"""Checks that fields of an ensemble are plausible and complete."""

from __future__ import annotations

import numpy as np

from smoe.errors import DataError
from smoe.gridded.grid import Grid
from smoe_paper.atmosphere.plausible import check_plausible
from smoe_paper.atmosphere.variables import Variable

# Land is 29 % of the globe and up to a third of the points of a coarse grid; lakes and ice may have values or not.
_MAX_LAND_SHARE = 0.6


def check_fields(
    fields: np.ndarray,
    physics: Variable,
    dates: np.ndarray,
    grid: Grid,
    where: str,
    *,
    is_sea_only: bool = False,
) -> None:
    """Refuses values that are infinite, implausible, or missing.

    Args:
        fields: Fields, `(T, H, W)`.
        physics: Unit and bounds of the values.
        dates: Dates of the fields, `(T,)`.
        grid: Grid of the fields.
        where: Name of the fields in an error message.
        is_sea_only: Whether values may be missing over land.

    Raises:
        DataError: If a value is refused; the message contains the first place and the number of such values.
    """
    check_plausible(fields, physics, None, dates, where)
    is_missing = np.isnan(fields)
    if not is_missing.any():
        return
    share = is_missing.mean(axis=(1, 2))
    if is_sea_only and share.max() <= _MAX_LAND_SHARE:
        return
    step = int(np.argmax(share > (_MAX_LAND_SHARE if is_sea_only else 0.0)))
    row, column = np.unravel_index(int(is_missing[step].argmax()), is_missing[step].shape)
    land = ", more than land can be" if is_sea_only else ""
    raise DataError(
        f"{where} holds {int(is_missing.sum()):,} NaN, {is_missing.mean():.2%} of its values{land}, the first at "
        f"{dates[step]}, latitude {grid.latitude[row]:g}, longitude {grid.longitude[column]:g}: repair the file"
    )
