from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import xarray as xr

from gridded_files import regional, times
from smoe.errors import DataError
from smoe.gridded._axes import find_axes


def field(dims: tuple[str, ...], coords: Mapping[str, object]) -> xr.DataArray:
    return xr.DataArray(np.zeros(tuple(range(2, 2 + len(dims)))), dims=dims, coords=coords, name="f")


def test_attributes_win_over_names() -> None:
    # The dimension called "lat" holds longitudes and the other way round.
    coords = {
        "lat": ("lat", [0.0, 1.0], {"standard_name": "longitude"}),
        "lon": ("lon", [0.0, 1.0, 2.0], {"axis": "Y", "standard_name": "latitude"}),
    }
    axes = find_axes(field(("lat", "lon"), coords), "f")
    assert (axes.row, axes.column) == ("lon", "lat")
    assert (axes.latitude, axes.longitude) == ("lon", "lat")


@pytest.mark.parametrize("units", ["degrees_north", "degree_N"])
def test_units_tell_rows(units: str) -> None:
    coords = {"a": ("a", [0.0, 1.0], {"units": units}), "b": ("b", [0.0, 1.0, 2.0], {"units": "degrees_east"})}
    axes = find_axes(field(("a", "b"), coords), "f")
    assert (axes.row, axes.column, axes.latitude) == ("a", "b", "a")


def test_names_without_attributes() -> None:
    array = field(("valid_time", "plev", "latitude", "longitude"), {"valid_time": times(2), "plev": [1.0, 2.0, 3.0]})
    axes = find_axes(array, "f")
    assert (axes.time, axes.level, axes.row, axes.column) == ("valid_time", "plev", "latitude", "longitude")


@pytest.mark.parametrize("names", [("LAT", "LON"), ("Latitude", "Longitude")])
def test_names_in_any_case(names: tuple[str, str]) -> None:
    array = field(("Time", *names), {"Time": times(2), names[0]: np.arange(3.0), names[1]: np.arange(4.0)})
    axes = find_axes(array, "f")
    assert (axes.time, axes.row, axes.column, axes.latitude, axes.longitude) == ("Time", *names, *names)


def test_pixel_coordinates_give_rows_and_columns() -> None:
    pixels = np.zeros((3, 4))
    coords = {
        "time": times(2),
        "nav_lat": (("j2", "i2"), pixels, {"standard_name": "latitude"}),
        "nav_lon": (("j2", "i2"), pixels, {"standard_name": "longitude"}),
    }
    axes = find_axes(field(("time", "j2", "i2"), coords), "f")
    assert (axes.row, axes.column, axes.latitude, axes.longitude) == ("j2", "i2", "nav_lat", "nav_lon")


def test_rotated_rows_are_no_latitudes() -> None:
    coords = {
        "y": ("y", [0.0, 1.0], {"standard_name": "grid_latitude"}),
        "x": ("x", [0.0, 1.0, 2.0], {"standard_name": "grid_longitude"}),
    }
    axes = find_axes(field(("y", "x"), coords), "f")
    assert (axes.row, axes.column, axes.latitude) == ("y", "x", None)


def test_forecasts_by_name_and_by_time_differences() -> None:
    coords = {"init_time": times(2), "lead_time": np.arange(3) * np.timedelta64(6, "h")}
    axes = find_axes(field(("init_time", "lead_time", "lat", "lon"), coords), "f")
    assert axes.is_forecast and (axes.time, axes.lead) == ("init_time", "lead_time")
    # As GRIB readers have it: the start is called time, the lead step.
    coords = {"time": times(2), "step": np.arange(3) * np.timedelta64(6, "h")}
    axes = find_axes(field(("time", "step", "lat", "lon"), coords), "f")
    assert axes.is_forecast and (axes.time, axes.lead) == ("time", "step")


def test_a_forecast_of_one_lead_time_keeps_it_as_a_scalar() -> None:
    coords = {"init_time": times(2), "lead_time": ((), 48, {"units": "hours"})}
    axes = find_axes(field(("init_time", "lat", "lon"), coords), "f")
    assert axes.is_forecast and axes.lead is None and axes.lead_coordinate == "lead_time"


def test_valid_times_beside_start_times_without_a_lead_time() -> None:
    coords = {
        "time": ("time", times(2), {"standard_name": "forecast_reference_time"}),
        "valid_time": ("time", times(2, "2001-01-02"), {"standard_name": "time"}),
    }
    axes = find_axes(field(("time", "lat", "lon"), coords), "f")
    assert not axes.is_forecast and (axes.time, axes.time_coordinate) == ("time", "valid_time")


def test_dates_beside_a_counter() -> None:
    coords = {
        "time_counter": ("time_counter", [0.0, 0.0], {"axis": "T"}),
        "time_centered": ("time_counter", times(2), {"standard_name": "time"}),
    }
    axes = find_axes(field(("time_counter", "y", "x"), coords), "f")
    assert (axes.time, axes.time_coordinate) == ("time_counter", "time_centered")


def test_two_nameless_dimensions_are_a_grid() -> None:
    axes = find_axes(field(("time", "dim_0", "dim_1"), {"time": times(2)}), "f")
    assert (axes.row, axes.column, axes.latitude) == ("dim_0", "dim_1", None)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (("number", "lat", "lon"), "ensemble dimension 'number': select a member or average"),
        (("station", "lat", "lon"), "dimension 'station', not a time, level or grid"),
        (("time", "lon"), "none of which looks like rows"),
        (("lat", "latitude", "lon"), "two dimensions that look like row: lat and latitude"),
        (("lead_time", "lat", "lon"), "lead times but no start times"),
        (("init_time", "lat", "lon"), "start times but no lead time"),
    ],
)
def test_what_cannot_be_told_is_refused_by_name(dims: tuple[str, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        find_axes(field(dims, {}), "t2m of inputs")


def test_a_usual_file() -> None:
    axes = find_axes(regional()["t2m"], "t2m")
    assert (axes.time, axes.row, axes.column, axes.level) == ("time", "lat", "lon", None) and not axes.is_forecast
