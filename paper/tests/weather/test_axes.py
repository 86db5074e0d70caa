"""Axes in another order, direction or unit are put right with a notice; other grids are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from smoe.errors import DataError
from smoe_paper.atmosphere.axes import GRIDS
from smoe_paper.weather.archives import open_source
from weather_files import constant_field, data_array, times_of_year, weather_field, write_netcdf, write_weatherbench

GRID = GRIDS["5.625deg"]
TIMES = times_of_year(1979, 4)


def write_one(root: Path, array: xr.DataArray, folder: str = "temperature") -> Path:
    return write_netcdf(array.to_dataset(name=array.name), root / "5.625deg" / folder / f"{folder}_1979_5.625deg.nc")


def _north_first(array):
    return array.isel(lat=slice(None, None, -1))


def _from_minus_180(array):
    array = array.assign_coords(lon=(array.lon + 180) % 360 - 180)
    return array.sortby("lon")


def _in_pascal(array):
    array = array.isel(level=slice(None, None, -1))
    return array.assign_coords(level=("level", array.level.values * 100.0))


CHANGES = {
    "north first": (_north_first, "latitude runs north to south: turned round"),
    "from -180": (_from_minus_180, "longitude does not start at 0: rolled"),
    "long names": (
        lambda array: array.rename(lat="latitude", lon="longitude"),
        "axes are named latitude/longitude: read as lat/lon",
    ),
    "another order": (
        lambda array: array.transpose("level", "lon", "time", "lat"),
        "dimensions are in the order level, lon, time, lat",
    ),
    "levels in Pa": (_in_pascal, "levels are in Pa: read as hPa"),
    "single precision": (
        lambda array: array.assign_coords(lat=array.lat.astype("f4"), lon=array.lon.astype("f4") + np.float32(1e-5)),
        None,
    ),
    "an axis of one": (lambda array: array.expand_dims(number=[0]), None),
    "packed": (lambda array: array.astype("f8"), None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_put_right_with_a_notice(tmp_path, change):
    apply, notice = CHANGES[change]
    write_one(tmp_path, apply(data_array("t", TIMES, GRID)))
    with open_source(tmp_path) as source:
        for channel in ("t_50", "t_850"):
            np.testing.assert_array_equal(source.read(channel, 1979), weather_field(channel, TIMES, GRID))
        assert [said.split(" (first seen in")[0] for said in source.notices if notice and said.startswith(notice)] or (
            notice is None and not source.notices
        )


def test_everything_at_once(tmp_path):
    array = data_array("t", TIMES, GRID)
    for apply, _ in CHANGES.values():
        if "lat" not in array.dims:
            array = array.rename(latitude="lat", longitude="lon")
        array = apply(array)
    write_one(tmp_path, array)
    with open_source(tmp_path) as source:
        np.testing.assert_array_equal(source.read("t_600", 1979), weather_field("t_600", TIMES, GRID))
        assert len(source.notices) == 4


def test_constants_are_turned_too(tmp_path):
    folder = write_weatherbench(tmp_path, years=(1979,), steps=2, variables=("t2m",))
    path = folder / "constants" / "constants_5.625deg.nc"
    with xr.open_dataset(path) as dataset:
        dataset.load()
    write_netcdf(_from_minus_180(_north_first(dataset)), path)
    with open_source(tmp_path) as source:
        np.testing.assert_array_equal(source.read_constant("orography"), constant_field("orography", GRID))


@pytest.mark.parametrize("resolution", GRIDS)
def test_every_grid_is_recognised(tmp_path, resolution):
    write_weatherbench(tmp_path, years=(1979,), steps=2, variables=("t2m",), resolution=resolution)
    with open_source(tmp_path) as source:
        assert source.grid == GRIDS[resolution]
        assert source.grid.name == resolution
        assert source.read("t2m", 1979).shape == (2, *GRIDS[resolution].shape)


def test_grids_are_those_of_weatherbench():
    assert {name: grid.shape for name, grid in GRIDS.items()} == {
        "5.625deg": (32, 64), "2.8125deg": (64, 128), "1.40625deg": (128, 256)
    }  # fmt: skip
    assert (GRID.latitude[0], GRID.latitude[-1], GRID.longitude[-1], GRID.degrees) == (
        -87.1875,
        87.1875,
        354.375,
        5.625,
    )


def _with_poles(array):
    return array.assign_coords(lat=np.linspace(-90, 90, 32))


def _shuffled(array):
    return array.isel(lat=[*range(1, 16), 0, *range(16, 32)])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_with_poles, r"another grid: 32 latitudes from -90 to 90 and 64 longitudes from 0 to 354.375, expected"),
        (_shuffled, "another grid"),
        (lambda array: array.isel(lon=slice(0, 32)), "another grid: 32 latitudes .* 32 longitudes from 0 to 174.375"),
        (lambda array: array.rename(lat="y"), r"dimensions \('time', 'level', 'y', 'lon'\), expected one named lat or"),
        (lambda array: array.drop_vars("lon"), "has no values for its dimension 'lon'"),
        (lambda array: array.rename(level="height"), "expected one named level or plev"),
        (lambda array: array.assign_coords(level=[50, 250, 250, 600, 700, 850, 925]), "holds a level twice"),
        (lambda array: xr.concat([array, array], xr.Variable("number", [0, 1])), "dimension 'number' of length 2"),
    ],
)
def test_refused(tmp_path, change, says):
    write_one(tmp_path, change(data_array("t", TIMES, GRID)))
    with pytest.raises(DataError, match=says):
        open_source(tmp_path)


def test_folder_of_another_resolution_is_refused(tmp_path):
    write_one(tmp_path, data_array("t2m", TIMES, GRIDS["2.8125deg"]), "2m_temperature")
    with pytest.raises(DataError, match=r"t2m is on the 2.8125deg grid, expected 5.625deg"):
        open_source(tmp_path)


def test_variables_on_two_grids_are_refused(tmp_path):
    # The folder's name does not say the resolution here.
    for name, resolution in (("t2m", "5.625deg"), ("u10", "2.8125deg")):
        folder = write_weatherbench(tmp_path / "x", years=(1979,), steps=2, variables=(name,), resolution=resolution,
                                    constants=False)  # fmt: skip
        for each in folder.iterdir():
            each.rename(tmp_path / each.name)
        folder.rmdir()
    with open_source(tmp_path) as source, pytest.raises(DataError, match=r"u10 is on the 2.8125deg grid, expected 5.6"):
        source.read("u10", 1979)
