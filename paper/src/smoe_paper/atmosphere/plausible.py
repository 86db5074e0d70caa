"""Checks whether values can be weather. Finds wrong units, unwritten parts and damage that no library reports."""

from __future__ import annotations

from math import log

import numpy as np

from smoe.errors import DataError
from smoe_paper.atmosphere.variables import STANDARD_GRAVITY, Variable


def check_plausible(fields: np.ndarray, variable: Variable, level: int | None, times: np.ndarray, where: str) -> None:
    """Refuses values outside the bounds of a variable and fields that are constant in space; NaNs pass.

    Args:
        fields: `(T, H, W)`.
        variable: Variable of the fields.
        level: Pressure level in hPa.
        times: Times of the fields, `(T,)`.
        where: Name of the fields in an error message.
    """
    flat = fields.reshape(len(fields), -1)
    lowest, highest = np.fmin.reduce(flat, axis=1), np.fmax.reduce(flat, axis=1)
    low, high = plausible_bounds(variable, level)
    bad = (lowest < low) | (highest > high)
    if bad.any():
        place = int(np.argmax(bad))
        raise DataError(
            f"{where} at {times[place]} has values from {lowest[place]:g} to {highest[place]:g}, which cannot be "
            f"{variable.short_name} in {variable.units} (between {low:g} and {high:g}): the unit is another or the "
            f"file is damaged ({int(bad.sum())} of {len(bad)} times)"
        )
    # Rain and sunlight exist somewhere at any time, so a field of zeros is not weather either.
    constant = lowest == highest
    if variable.varies and constant.any():
        place = int(np.argmax(constant))
        raise DataError(
            f"{where} at {times[place]} is {lowest[place]:g} everywhere ({int(constant.sum())} of {len(constant)} "
            "times): this part of the file was never written or is damaged; download it again"
        )


def plausible_bounds(variable: Variable, level: int | None) -> tuple[float, float]:
    """Returns the bounds of a variable; geopotential lies around that of the standard atmosphere."""
    if variable.short_name != "z" or level is None:
        return variable.plausible
    # Wide enough for every cyclone and a crude simulated stratosphere, too narrow for heights in m.
    standard = STANDARD_GRAVITY * standard_height(level)
    return 0.7 * standard - 8.0e3, 1.3 * standard + 8.0e3


def standard_height(level: float) -> float:
    """Returns the height in m of a pressure level, in hPa, of the standard atmosphere; isothermal above 11 km."""
    if level > 226.32:
        return 44330.8 * (1.0 - (level / 1013.25) ** 0.190263)
    return 11000.0 + 6341.6 * log(226.32 / level)
