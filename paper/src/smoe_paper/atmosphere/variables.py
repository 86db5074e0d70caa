"""Variables of the atmosphere: names, units, and plausible values."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING

from smoe.errors import DataError, suggest

if TYPE_CHECKING:
    import numpy as np


def check_plausible(fields: np.ndarray, variable: Variable, level: int | None, times: np.ndarray, where: str) -> None:
    """Refuses values outside the bounds of a variable and fields that are constant in space; NaNs pass."""
    import numpy as np  # here, because help texts name variables and import no numpy

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


LEVELS = (50, 250, 500, 600, 700, 850, 925)
"""Pressure levels of the experiments in hPa."""

STANDARD_GRAVITY = 9.80665


@dataclass(frozen=True)
class Variable:
    """A physical quantity, its names in WeatherBench, and the bounds of plausible values."""

    short_name: str
    folder: str
    units: str
    plausible: tuple[float, float]
    has_levels: bool = False
    varies: bool = True
    is_accumulated: bool = False
    other_units: str = ""  # that are equal to them


_ALL = (
    Variable("z", "geopotential", "m2 s-2", (-2.0e4, 6.0e5), True, other_units="J kg-1"),
    Variable("t", "temperature", "K", (100.0, 400.0), True),
    Variable("u", "u_component_of_wind", "m s-1", (-250.0, 250.0), True),
    Variable("v", "v_component_of_wind", "m s-1", (-250.0, 250.0), True),
    Variable("q", "specific_humidity", "kg kg-1", (-0.02, 0.1), True),
    Variable("r", "relative_humidity", "%", (-50.0, 300.0), True),
    Variable("vo", "vorticity", "s-1", (-0.1, 0.1), True),
    Variable("pv", "potential_vorticity", "K m2 kg-1 s-1", (-0.1, 0.1), True),
    Variable("tisr", "toa_incident_solar_radiation", "J m-2", (-1.0e4, 4.0e7), is_accumulated=True),
    Variable("t2m", "2m_temperature", "K", (130.0, 400.0)),
    Variable("tp", "6hr_precipitation", "m", (-0.01, 3.0), is_accumulated=True),
    Variable("u10", "10m_u_component_of_wind", "m s-1", (-150.0, 150.0)),
    Variable("v10", "10m_v_component_of_wind", "m s-1", (-150.0, 150.0)),
    Variable("tcc", "total_cloud_cover", "1", (-0.1, 1.1)),
)

VARIABLES: dict[str, Variable] = {variable.short_name: variable for variable in _ALL}

HOURLY_PRECIPITATION = Variable("tp", "total_precipitation", "m", (-0.01, 1.0), is_accumulated=True)
"""Totals of one hour, as downloaded: the channel `tp` is their sum over the last six."""

CONSTANTS = ("lsm", "orography", "lat2d", "lon2d", "slt")


@dataclass(frozen=True)
class Channel:
    variable: str
    level: int | None = None

    def __str__(self) -> str:
        return self.variable if self.level is None else f"{self.variable}_{self.level}"


def parse_channel(name: str) -> Channel:
    match = re.fullmatch(r"([a-z]+)_([1-9][0-9]{0,3})", name)
    short_name, level = (match[1], int(match[2])) if match else (name, None)
    variable = VARIABLES.get(short_name)
    if variable is None:
        known = [str(Channel(each.short_name, 500 if each.has_levels else None)) for each in _ALL]
        typed = name if match is None else f"{short_name}_500"
        near = difflib.get_close_matches(typed, [*known, *DEFAULT_INPUTS], n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        raise DataError(f"no weather channel is named {name!r}; {hint}")
    if variable.has_levels and level is None:
        raise DataError(f"channel {name!r} needs a pressure level in hPa, for example {short_name}_500")
    if not variable.has_levels and level is not None:
        raise DataError(f"channel {name!r}: {short_name} has no pressure levels; write {short_name!r}")
    return Channel(short_name, level)


def check_constant_name(name: str) -> None:
    if name not in CONSTANTS:
        raise DataError(f"no constant field is named {name!r}; {suggest(name, CONSTANTS)}")


DEFAULT_INPUTS: tuple[str, ...] = (
    *(str(Channel(short_name, level)) for short_name in ("z", "t", "u", "v", "q") for level in LEVELS),
    "tisr",
    "t2m",
    "tp",
)
DEFAULT_CONSTANTS: tuple[str, ...] = ("lsm", "orography", "lat2d", "lon2d")
