from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import xarray as xr

from gridded_files import times
from smoe.errors import DataError
from smoe.gridded._axes import are_same_units, find_axes

HOURS = np.arange(3) * np.timedelta64(6, "h")
PIXELS = np.zeros((3, 4))


def field(dims: tuple[str, ...], coords: Mapping[str, object]) -> xr.DataArray:
    return xr.DataArray(np.zeros(tuple(range(2, 2 + len(dims)))), dims=dims, coords=coords, name="f")


CASES: dict[str, tuple[str, dict[str, object], dict[str, object]]] = {
    "attributes win over names": (
        "lat lon",
        {
            "lat": ("lat", [0.0, 1.0], {"standard_name": "longitude"}),
            "lon": ("lon", [0.0, 1.0, 2.0], {"axis": "Y", "standard_name": "latitude"}),
        },
        {"row": "lon", "column": "lat", "latitude": "lon", "longitude": "lat"},
    ),
    **{
        f"units {units}": (
            "a b",
            {"a": ("a", [0.0, 1.0], {"units": units}), "b": ("b", [0.0, 1.0, 2.0], {"units": "degrees_east"})},
            {"row": "a", "column": "b", "latitude": "a"},
        )
        for units in ("degrees_north", "degree_N")
    },
    "names without attributes": (
        "valid_time plev latitude longitude",
        {"valid_time": times(2), "plev": [1.0, 2.0, 3.0]},
        {"time": "valid_time", "level": "plev", "row": "latitude", "column": "longitude"},
    ),
    **{
        f"names in any case, {rows}": (
            f"Time {rows} {columns}",
            {"Time": times(2), rows: np.arange(3.0), columns: np.arange(4.0)},
            {"time": "Time", "row": rows, "column": columns, "latitude": rows, "longitude": columns},
        )
        for rows, columns in (("LAT", "LON"), ("Latitude", "Longitude"))
    },
    "coordinates of each pixel": (
        "time j2 i2",
        {
            "time": times(2),
            "nav_lat": (("j2", "i2"), PIXELS, {"standard_name": "latitude"}),
            "nav_lon": (("j2", "i2"), PIXELS, {"standard_name": "longitude"}),
        },
        {"row": "j2", "column": "i2", "latitude": "nav_lat", "longitude": "nav_lon"},
    ),
    "rotated rows are no latitudes": (
        "y x",
        {
            "y": ("y", [0.0, 1.0], {"standard_name": "grid_latitude"}),
            "x": ("x", [0.0, 1.0, 2.0], {"standard_name": "grid_longitude"}),
        },
        {"row": "y", "column": "x", "latitude": None},
    ),
    "forecasts": (
        "init_time lead_time lat lon",
        {"init_time": times(2), "lead_time": HOURS},
        {"is_forecast": True, "time": "init_time", "lead": "lead_time"},
    ),
    "forecasts of GRIB readers": (
        "time step lat lon",
        {"time": times(2), "step": HOURS},
        {"is_forecast": True, "time": "time", "lead": "step"},
    ),
    "a single lead time": (
        "init_time lat lon",
        {"init_time": times(2), "lead_time": ((), 48, {"units": "hours"})},
        {"is_forecast": True, "lead": None, "lead_coordinate": "lead_time"},
    ),
    "valid times beside start times": (
        "time lat lon",
        {
            "time": ("time", times(2), {"standard_name": "forecast_reference_time"}),
            "valid_time": ("time", times(2, "2001-01-02"), {"standard_name": "time"}),
        },
        {"is_forecast": False, "time": "time", "time_coordinate": "valid_time"},
    ),
    "dates beside a counter": (
        "time_counter y x",
        {
            "time_counter": ("time_counter", [0.0, 0.0], {"axis": "T"}),
            "time_centered": ("time_counter", times(2), {"standard_name": "time"}),
        },
        {"time": "time_counter", "time_coordinate": "time_centered"},
    ),
    "two nameless dimensions are a grid": (
        "time dim_0 dim_1",
        {"time": times(2)},
        {"row": "dim_0", "column": "dim_1", "latitude": None},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_axes(case: str) -> None:
    dims, coords, expected = CASES[case]
    axes = find_axes(field(tuple(dims.split()), coords), "f")
    assert {name: getattr(axes, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ("number lat lon", "ensemble dimension 'number': select a member or average"),
        ("station lat lon", "dimension 'station', not a time, level or grid"),
        ("time lon", "none of which looks like rows"),
        ("lat latitude lon", "two dimensions that look like row: lat and latitude"),
        ("lead_time lat lon", "lead times but no start times"),
        ("init_time lat lon", "start times but no lead time"),
    ],
)
def test_what_cannot_be_told_is_refused_by_name(dims: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        find_axes(field(tuple(dims.split()), {}), "t2m of inputs")


SAME = """m s**-1 | m s-1, m/s | m s^-1, m**2 s**-2 | m2 s-2, K | kelvin, degC | degrees_Celsius, hPa | millibars,
kg/kg | 1, (0 - 1) | 1, kg m**-2 s**-1 | kg m-2 s-1, | 1, beaufort (1805) | beaufort (1805)"""
OTHER = """K | degC, m s-1 | m s-2, m s-1 | km h-1, Pa | hPa, m | M, s/m | m/s, % | 1, K |,
days since 2000-01-01 | days since 2001-01-01"""


@pytest.mark.parametrize(("pairs", "is_same"), [(SAME, True), (OTHER, False)])
def test_spellings_of_units(pairs: str, is_same: bool) -> None:
    for pair in pairs.split(","):
        first, second = (text.strip() for text in pair.split("|"))
        assert are_same_units(first, second) == are_same_units(second, first) == is_same, pair
