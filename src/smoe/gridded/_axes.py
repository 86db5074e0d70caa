"""The axes and the units of a variable, from its CF attributes."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from smoe.errors import DataError, naming_extras

if TYPE_CHECKING:
    import xarray as xr

Role = Literal["time", "start", "lead", "level", "row", "column", "member"]

# Roles of what cf_xarray tells apart, in the order in which its patterns of names are tried.
_KINDS: dict[str, Role] = {
    "latitude": "row",
    "longitude": "column",
    "Y": "row",
    "X": "column",
    "T": "time",
    "Z": "level",
    "vertical": "level",
}
_STANDARD_NAMES: dict[str, Role] = {
    "forecast_reference_time": "start",
    "forecast_period": "lead",
    "realization": "member",
}
_LEVEL_UNITS: dict[str, Role] = dict.fromkeys(("Pa", "hPa", "mbar", "millibars", "millibar"), "level")
# Beside the patterns of cf_xarray, in lower case: files have LAT and Latitude too.
_NAMES: dict[str, Role] = {
    **dict.fromkeys(("valid_time", "time_counter"), "time"),
    **dict.fromkeys(("init_time", "initial_time", "reference_time", "forecast_reference_time", "init"), "start"),
    **dict.fromkeys(("lead_time", "lead", "step", "prediction_timedelta", "forecast_period", "leadtime"), "lead"),
    **dict.fromkeys(("plev", "deptht"), "level"),
    **dict.fromkeys(("grid_latitude", "south_north", "yc"), "row"),
    **dict.fromkeys(("grid_longitude", "west_east", "xc"), "column"),
    **dict.fromkeys(("member", "number", "ensemble", "realization"), "member"),
}


@functools.cache
def _criteria() -> dict[str, dict[str, Role]]:
    with naming_extras("reading gridded data"):
        from cf_xarray.criteria import coordinate_criteria
    found: dict[str, dict[str, Role]] = {"standard_name": dict(_STANDARD_NAMES), "units": dict(_LEVEL_UNITS)}
    for kind, role in _KINDS.items():
        for attribute, values in coordinate_criteria[kind].items():
            found.setdefault(attribute, {}).update(dict.fromkeys(values, role))
    return found


@functools.cache
def _named(name: str) -> Role | None:
    from cf_xarray.criteria import regex

    if name.lower() in _NAMES:
        return _NAMES[name.lower()]
    return next((role for kind, role in _KINDS.items() if kind in regex and regex[kind].fullmatch(name.lower())), None)


@dataclass(frozen=True)
class Axes:
    """Names of the dimensions and coordinates of a field; None where it has none.

    The times of a forecast are its start times. A single lead time is a coordinate without a dimension. Latitude and
    longitude are along rows and columns, or of each pixel.
    """

    row: str
    column: str
    time: str | None = None
    time_coordinate: str | None = None
    lead: str | None = None
    lead_coordinate: str | None = None
    level: str | None = None
    latitude: str | None = None
    longitude: str | None = None

    @property
    def in_order(self) -> tuple[str, ...]:
        """Dimensions in the order of fields: times, lead times, levels, rows, columns."""
        order = (self.time, self.lead, self.level, self.row, self.column)
        return tuple(dim for dim in order if dim is not None)

    @property
    def is_forecast(self) -> bool:
        return self.lead_coordinate is not None


def find_axes(array: xr.DataArray, where: str) -> Axes:
    roles: dict[Role, tuple[str, str | None]] = {}
    unknown: list[str] = []
    pixel_latitude = _pixel_coordinate(array, "latitude")
    pixel_longitude = _pixel_coordinate(array, "longitude")
    if pixel_latitude is not None and pixel_longitude is not None:
        rows, columns = (str(name) for name in array[pixel_latitude].dims)
        roles["row"], roles["column"] = (rows, None), (columns, None)
    for name in map(str, array.dims):
        if name in (dimension for dimension, _ in roles.values()):
            continue
        role, coordinate = _role_of_dimension(array, name)
        if role is None:
            unknown.append(name)
        elif role in roles:
            raise DataError(f"{where} has two dimensions that look like {role}: {roles[role][0]} and {name}; drop one")
        else:
            roles[role] = (name, coordinate)
    if "row" not in roles and "column" not in roles and len(unknown) == 2 and unknown == list(array.dims)[-2:]:
        # Two nameless dimensions at the end are rows and columns of a grid without coordinates.
        roles["row"], roles["column"] = (unknown[0], None), (unknown[1], None)
        unknown = []
    for role in ("row", "column"):
        if role not in roles:
            raise DataError(
                f"{where} has the dimensions {tuple(array.dims)}, none of which looks like {role}s; give it a "
                f"coordinate with the attribute axis = {'Y' if role == 'row' else 'X'!r}"
            )
    if "member" in roles:
        raise DataError(f"{where} has the ensemble dimension {roles['member'][0]!r}: select a member or average them")
    if unknown:
        raise DataError(f"{where} has the dimension {unknown[0]!r}, not a time, level or grid: select along it")
    if "start" in roles and "time" in roles:
        raise DataError(
            f"{where} has the two time dimensions {roles['start'][0]} and {roles['time'][0]}: give forecasts as start "
            "times and lead times"
        )
    lead, lead_coordinate = roles.get("lead", (None, None))
    if lead is None and "start" in roles:
        # Forecasts of one lead time keep it as a scalar, or have valid times beside their starts.
        start = roles["start"][0]
        scalars = [str(name) for name in array.coords if array[name].ndim == 0 and _role(array[name]) == "lead"]
        valid = [str(name) for name, each in array.coords.items() if each.dims == (start,) and _role(each) == "time"]
        if scalars:
            lead_coordinate = scalars[0]
        elif valid:
            roles["start"] = (start, valid[0])
        else:
            raise DataError(
                f"{where} has start times but no lead time: add the coordinate lead_time, or, if {start} holds times "
                "of analyses, set its attribute standard_name to 'time'"
            )
    elif lead is not None and "start" not in roles and "time" not in roles:
        raise DataError(f"{where} has lead times but no start times: add the dimension init_time")
    time, time_coordinate = roles.get("start") or roles.get("time") or (None, None)
    level = roles["level"][0] if "level" in roles else None
    (row, rows), (column, columns) = roles["row"], roles["column"]
    # Of rows and columns, if they hold true latitudes or longitudes, not those of a rotated pole.
    latitude = pixel_latitude or (rows if rows and _holds(array[rows], "latitude") else None)
    longitude = pixel_longitude or (columns if columns and _holds(array[columns], "longitude") else None)
    return Axes(row, column, time, time_coordinate, lead, lead_coordinate, level, latitude, longitude)


def scalar_level(array: xr.DataArray) -> float | None:
    """The level of a field that was selected from several, from its scalar coordinate; None without one."""
    found = [each for each in array.coords.values() if each.ndim == 0 and each.dtype.kind in "iuf"]
    levels = [float(level_values(each)) for each in found if _role(each) == "level"]
    return levels[0] if len(levels) == 1 else None


_LEVEL_FACTORS = {"Pa": 0.01, "kPa": 10.0, "bar": 1000.0, "km": 1000.0, "cm": 0.01}


def level_values(coordinate: xr.DataArray) -> np.ndarray:
    """Levels in hPa or metres where their units are known, else as they are."""
    units = str(coordinate.attrs.get("units", "")).strip()
    factor = _LEVEL_FACTORS.get(_KNOWN.get(units.lower(), units), 1.0)
    return np.round(np.asarray(coordinate.values, np.float64) * factor, 9)


def _pixel_coordinate(array: xr.DataArray, which: str) -> str | None:
    found = [str(name) for name in array.coords if array[name].ndim == 2 and _holds(array[name], which)]
    return found[0] if found else None


def _holds(coordinate: xr.DataArray, which: str) -> bool:
    """Whether a coordinate holds latitudes, or longitudes, by its standard name, units or name."""
    from cf_xarray.criteria import coordinate_criteria, regex

    if "standard_name" in coordinate.attrs:
        return coordinate.attrs["standard_name"] == which
    name = str(coordinate.name).lower()
    is_named = regex[which].fullmatch(name) is not None or name == f"x{which[:3]}"
    return str(coordinate.attrs.get("units", "")) in coordinate_criteria[which]["units"] or is_named


def _role_of_dimension(array: xr.DataArray, dimension: str) -> tuple[Role | None, str | None]:
    """Role of a dimension and the coordinate that gave it: the one of its own name, or another along it."""
    along = [str(name) for name in array.coords if array[name].dims == (dimension,) and name != dimension]
    own = [dimension] if dimension in array.coords else []
    found: dict[str, Role] = {name: role for name in own + along if (role := _role(array[name])) is not None}
    dated = [name for name, role in found.items() if role == "time" and array[name].dtype.kind in "MO"]
    if dimension in found and (found[dimension] != "time" or dimension in dated):
        return found[dimension], dimension
    # A dimension without dates of its own, such as a counter, may have them in a coordinate beside it.
    if dated:
        return "time", dated[0]
    if found and not (own or _named(dimension)):
        name, role = next(iter(found.items()))
        return role, name
    return (found[dimension], dimension) if dimension in found else (_named(dimension), own[0] if own else None)


def _role(coordinate: xr.DataArray) -> Role | None:
    criteria, attributes, name = _criteria(), coordinate.attrs, str(coordinate.name)
    if (standard := str(attributes.get("standard_name"))) in criteria["standard_name"]:
        return criteria["standard_name"][standard]
    if coordinate.dtype.kind == "m":
        return "lead"
    for attribute in ("axis", "_CoordinateAxisType", "cartesian_axis"):
        role = criteria[attribute].get(str(attributes.get(attribute)))
        if role is not None:
            return "start" if role == "time" and _named(name) == "start" else role
    if coordinate.dtype.kind == "M" or (coordinate.dtype.kind == "O" and _named(name) in ("time", "start", None)):
        return "start" if _named(name) == "start" else "time"
    role = criteria["units"].get(str(attributes.get("units", "")))
    return role or ("level" if "positive" in attributes else _named(name))


def with_axes(dataset: xr.Dataset) -> xr.Dataset:
    """A data set whose latitudes and longitudes are coordinates, and whose analyses have valid times.

    Files may hold latitudes and longitudes as variables that no field refers to, along dimensions without coordinates,
    and repeat them at each time, as WRF does. Those of a grid that moves with time are left as they are. In GRIB files,
    an analysis is a forecast with a single lead time of 0: its start times are its times. The start of a single
    forecast becomes a dimension.
    """
    for name in list(map(str, dataset.variables)):
        array = dataset[name]
        is_field = array.ndim in (2, 3) and array.dtype.kind == "f"
        if not is_field or not (_holds(array, "latitude") or _holds(array, "longitude")):
            continue
        if any(dimension in dataset.coords for dimension in array.dims[-2:]):
            continue
        if array.ndim == 2:
            dataset = dataset.set_coords(name)
        elif np.array_equal(*array.isel({array.dims[0]: [0, -1]}).values):
            dataset = dataset.drop_vars(name).assign_coords({name: array.isel({array.dims[0]: 0}, drop=True)})
    return _with_starts(dataset)


def has_leads(dataset: xr.Dataset) -> bool:
    return any(each.ndim == 1 and _role(each) == "lead" for each in dataset.coords.values())


def _with_starts(dataset: xr.Dataset) -> xr.Dataset:
    """Start times as times where the lead time is 0, and along a dimension where there are many lead times of one."""
    roles = {str(name): _role(each) for name, each in dataset.coords.items()}
    leads = [name for name, role in roles.items() if role == "lead"]
    starts = [name for name, role in roles.items() if role == "start" and dataset[name].dims in ((), (name,))]
    if len(leads) != 1 or len(starts) != 1 or dataset[leads[0]].dtype.kind not in "miuf":
        return dataset
    lead, start = dataset[leads[0]], dataset[starts[0]]
    if lead.dims == (lead.name,) and not start.ndim:
        along = {name: array for name, array in dataset.data_vars.items() if lead.name in array.dims}
        return dataset.drop_vars([*along, start.name]).assign(
            {name: array.expand_dims(str(start.name)) for name, array in along.items()}
        )
    if lead.ndim or lead.values != np.zeros((), lead.dtype):
        return dataset
    # cfgrib has the same times again, as valid times.
    again = [name for name, role in roles.items() if role == "time" and dataset[name].dims == start.dims]
    if not start.ndim and again:
        return dataset.drop_vars([leads[0], starts[0]])
    attributes = {**start.attrs, "standard_name": "time", "long_name": "time"}
    return dataset.drop_vars([leads[0], *again]).assign_coords({starts[0]: (start.dims, start.values, attributes)})


# Spellings of one unit that files use; nothing is converted.
_SPELLINGS = {
    "K": ("kelvin", "kelvins", "degk", "degree_k", "degrees_k", "deg_k", "degree_kelvin", "degrees_kelvin"),
    "degC": ("celsius", "degreec", "degree_c", "degrees_c", "deg_c", "degree_celsius", "degrees_celsius", "degc", "°c"),
    "m": ("meter", "meters", "metre", "metres"),
    "s": ("sec", "second", "seconds"),
    "kg": ("kilogram", "kilograms"),
    "Pa": ("pascal", "pascals"),
    "hPa": ("mb", "mbar", "millibar", "millibars", "hectopascal", "hectopascals"),
    "%": ("percent",),
    "1": ("", "-", "dimensionless", "(0 - 1)", "fraction"),
}
_KNOWN = {spelling: unit for unit, spellings in _SPELLINGS.items() for spelling in spellings}
_FACTOR = re.compile(r"^(?P<name>[^\d^*+-]+)(?:\^|\*\*)?(?P<power>[+-]?\d+)?$")


def are_same_units(first: str, second: str) -> bool:
    """Whether two texts name the same units. A text that is not understood equals itself only."""
    return first == second or _factors(first) == _factors(second)


def _factors(text: str) -> dict[str, int] | str:
    """Powers of the units in a product, or the text itself."""
    text = text.strip()
    if text.lower() in _KNOWN:
        return {_KNOWN[text.lower()]: 1}
    powers: dict[str, int] = {}
    sign = 1
    for part in re.findall(r"/|[^\s/.]+", text.replace("**", "^")):
        if part == "/":
            sign = -1
            continue
        found = _FACTOR.match(part)
        if found is None and part != "1":
            return text
        if found is not None:
            name = _KNOWN.get(found["name"].lower(), found["name"])
            powers[name] = powers.get(name, 0) + sign * int(found["power"] or 1)
        sign = 1
    return {name: power for name, power in powers.items() if power} or {"1": 1}
