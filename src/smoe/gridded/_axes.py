"""The axes and the units of a variable, from its CF attributes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from smoe.errors import DataError

if TYPE_CHECKING:
    import xarray as xr

Role = Literal["time", "start", "lead", "level", "row", "column", "member"]

_STANDARD_NAMES: dict[str, Role] = {
    "time": "time",
    "forecast_reference_time": "start",
    "forecast_period": "lead",
    "latitude": "row",
    "grid_latitude": "row",
    "projection_y_coordinate": "row",
    "longitude": "column",
    "grid_longitude": "column",
    "projection_x_coordinate": "column",
    "realization": "member",
    "air_pressure": "level",
    "height": "level",
    "altitude": "level",
    "depth": "level",
    "model_level_number": "level",
    "atmosphere_hybrid_sigma_pressure_coordinate": "level",
    "atmosphere_hybrid_height_coordinate": "level",
    "atmosphere_sigma_coordinate": "level",
}
_AXIS_ATTRIBUTES: dict[str, Role] = {"T": "time", "Z": "level", "Y": "row", "X": "column"}
_UNITS: dict[str, Role] = {
    **dict.fromkeys(("degrees_north", "degree_north", "degree_N", "degrees_N", "degreeN", "degreesN"), "row"),
    **dict.fromkeys(("degrees_east", "degree_east", "degree_E", "degrees_E", "degreeE", "degreesE"), "column"),
    **dict.fromkeys(("Pa", "hPa", "mbar", "millibars", "millibar"), "level"),
}
# In lower case: files have LAT and Latitude too.
_NAMES: dict[str, Role] = {
    **dict.fromkeys(("time", "valid_time", "time_counter", "t"), "time"),
    **dict.fromkeys(("init_time", "initial_time", "reference_time", "forecast_reference_time", "init"), "start"),
    **dict.fromkeys(("lead_time", "lead", "step", "prediction_timedelta", "forecast_period", "leadtime"), "lead"),
    **dict.fromkeys(
        ("level", "lev", "plev", "pressure", "pressure_level", "isobaricinhpa", "height", "depth", "deptht", "z"),
        "level",
    ),
    **dict.fromkeys(("lat", "latitude", "y", "rlat", "grid_latitude", "south_north", "nj", "j", "yc"), "row"),
    **dict.fromkeys(("lon", "longitude", "x", "rlon", "grid_longitude", "west_east", "ni", "i", "xc"), "column"),
    **dict.fromkeys(("member", "number", "ensemble", "realization"), "member"),
}


@dataclass(frozen=True)
class Axes:
    """Names of the dimensions and coordinates of a field; None where it has none.

    Attributes:
        row: Dimension of the rows.
        column: Dimension of the columns.
        time: Dimension of the times; for a forecast, of its start times.
        time_coordinate: Coordinate with the times.
        lead: Dimension of the lead times of a forecast.
        lead_coordinate: Coordinate with the lead times; without a dimension, a single one.
        level: Dimension of the levels.
        latitude: Coordinate with latitudes, along the rows or of each pixel.
        longitude: Coordinate with longitudes, along the columns or of each pixel.
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
        """Whether the times are start times, to which a lead time is added."""
        return self.lead_coordinate is not None


def find_axes(array: xr.DataArray, where: str) -> Axes:
    """Finds the dimensions of a field.

    Args:
        array: Field with its coordinates.
        where: Name of the field in errors, such as `t2m of inputs.nc`.

    Raises:
        DataError: If rows and columns cannot be told, two dimensions have one role, or a dimension has none.
    """
    roles: dict[Role, tuple[str, str | None]] = {}
    unknown: list[str] = []
    pixel_latitude = _pixel_coordinate(array, "latitude", "row")
    pixel_longitude = _pixel_coordinate(array, "longitude", "column")
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
    return _complete(array, roles, pixel_latitude, pixel_longitude, where)


def _complete(
    array: xr.DataArray,
    roles: dict[Role, tuple[str, str | None]],
    pixel_latitude: str | None,
    pixel_longitude: str | None,
    where: str,
) -> Axes:
    if "start" in roles and "time" in roles:
        raise DataError(
            f"{where} has the two time dimensions {roles['start'][0]} and {roles['time'][0]}: give forecasts as start "
            "times and lead times"
        )
    lead, lead_coordinate = roles.get("lead", (None, None))
    if lead is None and "start" in roles:
        # Forecasts of one lead time keep it as a scalar.
        scalars = [str(name) for name in array.coords if array[name].ndim == 0 and _role(array[name]) == "lead"]
        if not scalars:
            raise DataError(f"{where} has start times but no lead time: add the coordinate lead_time")
        lead_coordinate = scalars[0]
    elif lead is not None and "start" not in roles and "time" not in roles:
        raise DataError(f"{where} has lead times but no start times: add the dimension init_time")
    time, time_coordinate = roles.get("start") or roles.get("time") or (None, None)
    row, column = roles["row"], roles["column"]
    return Axes(
        row=row[0],
        column=column[0],
        time=time,
        time_coordinate=time_coordinate,
        lead=lead,
        lead_coordinate=lead_coordinate,
        level=roles["level"][0] if "level" in roles else None,
        latitude=pixel_latitude or _geographic(array, row[1], "latitude"),
        longitude=pixel_longitude or _geographic(array, column[1], "longitude"),
    )


def scalar_level(array: xr.DataArray) -> float | None:
    """The level of a field that was selected from several, from its scalar coordinate; None if there is no such one."""
    found = [each for each in array.coords.values() if each.ndim == 0 and each.dtype.kind in "iuf"]
    levels = [float(each.values) for each in found if _role(each) == "level"]
    return levels[0] if len(levels) == 1 else None


def _geographic(array: xr.DataArray, coordinate: str | None, which: str) -> str | None:
    """The coordinate of rows or columns if it holds true latitudes or longitudes, not those of a rotated pole."""
    if coordinate is None:
        return None
    attributes = array[coordinate].attrs
    standard = attributes.get("standard_name")
    if standard is not None:
        return coordinate if standard == which else None
    role: Role = "row" if which == "latitude" else "column"
    if _UNITS.get(str(attributes.get("units", ""))) == role or coordinate.lower() in (which, which[:3]):
        return coordinate
    return None


def _pixel_coordinate(array: xr.DataArray, which: str, role: Role) -> str | None:
    found = [str(name) for name in array.coords if array[name].ndim == 2 and _is_named(array[name], which, role)]
    return found[0] if found else None


def _is_latitude_or_longitude(array: xr.DataArray) -> bool:
    """Whether a variable holds latitudes or longitudes of pixels, by its standard name, units or name."""
    return _is_named(array, "latitude", "row") or _is_named(array, "longitude", "column")


def _is_named(coordinate: xr.DataArray, which: str, role: Role) -> bool:
    standard = coordinate.attrs.get("standard_name")
    if standard is not None:
        return standard == which
    return _UNITS.get(str(coordinate.attrs.get("units", ""))) == role or str(coordinate.name).lower() in (
        which,
        which[:3],
        f"nav_{which[:3]}",
        f"x{which[:3]}",
        f"x{which[:4]}",
        f"{which[:3]}2d",
    )


def _role_of_dimension(array: xr.DataArray, dimension: str) -> tuple[Role | None, str | None]:
    """Role of a dimension and the coordinate that gave it: the one of its own name, or another along it."""
    along = [str(name) for name in array.coords if array[name].dims == (dimension,) and name != dimension]
    own = [dimension] if dimension in array.coords else []
    found: list[tuple[str, Role]] = []
    for name in own + along:
        role = _role(array[name])
        if role is not None:
            found.append((name, role))
    if dimension in dict(found) and not _lacks_dates(array, dimension, dict(found)[dimension]):
        return dict(found)[dimension], dimension
    # A dimension without dates of its own, such as a counter, may have them in a coordinate beside it.
    times = [name for name, role in found if role == "time" and not _lacks_dates(array, name, role)]
    if times:
        return "time", times[0]
    if found and not (dimension in own or _named(dimension)):
        return found[0][1], found[0][0]
    if dimension in dict(found):
        return dict(found)[dimension], dimension
    return _named(dimension), own[0] if own else None


def _lacks_dates(array: xr.DataArray, name: str, role: Role) -> bool:
    return role == "time" and array[name].dtype.kind not in "MO"


def _role(coordinate: xr.DataArray) -> Role | None:
    attributes = coordinate.attrs
    standard = attributes.get("standard_name")
    if standard in _STANDARD_NAMES:
        return _STANDARD_NAMES[standard]
    name = str(coordinate.name)
    if coordinate.dtype.kind == "m":
        return "lead"
    if attributes.get("axis") in _AXIS_ATTRIBUTES:
        role = _AXIS_ATTRIBUTES[attributes["axis"]]
        return "start" if role == "time" and _named(name) == "start" else role
    if coordinate.dtype.kind == "M" or (coordinate.dtype.kind == "O" and _named(name) in ("time", "start", None)):
        return "start" if _named(name) == "start" else "time"
    units = str(attributes.get("units", ""))
    if units in _UNITS:
        return _UNITS[units]
    if "positive" in attributes:
        return "level"
    return _named(name)


def _named(name: str) -> Role | None:
    """Role by a usual name."""
    return _NAMES.get(name.lower())


def with_pixel_coordinates(dataset: xr.Dataset) -> xr.Dataset:
    """A data set whose latitudes and longitudes are coordinates.

    Files may hold them as variables that no field refers to, along dimensions without coordinates, and repeat them at
    each time, as WRF does. Those of a grid that moves with time are left as they are.

    Args:
        dataset: Data set as it was opened; its fields are not read.
    """
    names = [
        str(name)
        for name, array in dataset.variables.items()
        if array.ndim in (2, 3) and array.dtype.kind == "f" and _is_latitude_or_longitude(dataset[name])
    ]
    for name in names:
        array = dataset[name]
        if any(dimension in dataset.coords for dimension in array.dims[-2:]):
            continue
        if array.ndim == 2:
            dataset = dataset.set_coords(name)
        elif _is_steady(array):
            dataset = dataset.drop_vars(name).assign_coords({name: array.isel({array.dims[0]: 0}, drop=True)})
    return dataset


def _is_steady(array: xr.DataArray) -> bool:
    """Whether the first and the last field are the same."""
    ends = array.isel({array.dims[0]: [0, -1]}).values
    return bool(np.array_equal(ends[0], ends[1]))


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
    """Whether two texts name the same units. A text that is not understood equals itself only.

    Args:
        first: Units as a file gives them.
        second: Units of the other one.
    """
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
