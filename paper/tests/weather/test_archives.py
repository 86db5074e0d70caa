"""Archives as downloaded give the fields that were written; other axes are put right with a notice or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from smoe.errors import DataError
from smoe_paper.atmosphere.axes import GRIDS
from smoe_paper.atmosphere.variables import DEFAULT_INPUTS, LEVELS
from smoe_paper.weather.archives import open_source
from weather_files import (
    constant_field,
    data_array,
    hourly_precipitation,
    times_of_year,
    weather_field,
    weatherbench2_dataset,
    write_cmip,
    write_netcdf,
    write_weatherbench,
    write_weatherbench2,
)

GRID = GRIDS["5.625deg"]


@pytest.fixture(scope="module")
def six_hourly(tmp_path_factory):
    root = tmp_path_factory.mktemp("weatherbench")
    write_weatherbench(root)
    return root


def test_reads_all_default_channels(six_hourly):
    with open_source(six_hourly) as source:
        assert source.kind == "weatherbench"
        assert source.grid == GRID
        assert source.step_hours == 6
        assert source.years == (1979, 1980)
        assert set(DEFAULT_INPUTS) == set(source.channels)
        assert source.notices == []
        for year in source.years:
            times = source.times(year)
            np.testing.assert_array_equal(times, times_of_year(year, 12))
            assert times.dtype == np.dtype("datetime64[h]")
            for channel in DEFAULT_INPUTS:
                fields = source.read(channel, year)
                assert fields.dtype == np.float32
                assert fields.flags.c_contiguous
                np.testing.assert_array_equal(fields, weather_field(channel, times, GRID), err_msg=channel)


def test_constants_of_the_file_and_of_the_grid(six_hourly):
    with open_source(six_hourly) as source:
        assert source.constant_names == ("lsm", "orography", "lat2d", "lon2d")
        for name in source.constant_names:
            np.testing.assert_array_equal(source.read_constant(name), constant_field(name, GRID), err_msg=name)


def test_hourly_precipitation_is_summed_over_six_hours_and_across_the_year(tmp_path):
    times = {1979: times_of_year(1979, 30, 1, "1979-12-30T18"), 1980: times_of_year(1980, 20, 1)}
    write_weatherbench(tmp_path, years=(1979, 1980), step_hours=1, variables=("t2m", "tp"), times=times)
    with open_source(tmp_path) as source:
        assert source.step_hours == 1
        assert source.channels == ("t2m", "tp")
        first, second = source.read("tp", 1979), source.read("tp", 1980)
    assert np.isnan(first[:5]).all()
    hourly = hourly_precipitation(np.concatenate([times[1979], times[1980]]), GRID).astype(np.float64)
    expected = np.stack([hourly[i - 5 : i + 1].sum(0) for i in range(5, 50)])
    np.testing.assert_allclose(np.concatenate([first[5:], second]), expected, rtol=1e-6)


TIMES_2 = times_of_year(0, 10, 6, "1959-12-31T00")


@pytest.mark.parametrize("layout", ["v2", "v3", "shards"])
def test_fields_years_and_constants(tmp_path, layout):
    dataset = weatherbench2_dataset(TIMES_2)
    options = {"v2": {}, "v3": {"zarr_format": 3}, "shards": {"zarr_format": 3, "chunk_steps": 2, "shard_steps": 4}}
    path = write_weatherbench2(tmp_path / "era5.zarr", dataset, **options[layout])
    assert dataset["geopotential"].dims == ("time", "level", "longitude", "latitude")
    with open_source(path) as source:
        assert (source.kind, source.step_hours, source.years) == ("weatherbench2", 6, (1959, 1960))
        assert set(source.channels) == set(DEFAULT_INPUTS)
        for year, times in ((1959, TIMES_2[:4]), (1960, TIMES_2[4:])):
            np.testing.assert_array_equal(source.times(year), times)
            for channel in DEFAULT_INPUTS if layout == "v2" else ("q_925", "tp"):
                fields = source.read(channel, year)
                np.testing.assert_array_equal(fields, weather_field(channel, times, GRID), err_msg=channel)
        assert source.constant_names == ("lsm", "orography", "lat2d", "lon2d")
        for name in source.constant_names:
            np.testing.assert_allclose(source.read_constant(name), constant_field(name, GRID), rtol=1e-6, err_msg=name)
        notices = " ".join(source.notices)
        assert "order time, level, longitude, latitude" in notices
        assert "axes are named latitude/longitude" in notices


ALL = ("z", "t", "u", "v", "q", "tisr", "t2m", "tp")


@pytest.mark.parametrize("archive_names", [True, False])
def test_names_units_levels_and_times(tmp_path, archive_names):
    # Two files of which the first ends with hour 0 of the next year, as in the archive.
    write_cmip(tmp_path / "CMIP" / "MPI-ESM", periods=(("1850-12-30T06", 8), ("1851-01-01T06", 8)), variables=ALL,
               archive_names=archive_names)  # fmt: skip
    with open_source(tmp_path, kind="cmip") as source:
        assert source.kind == "cmip"
        assert source.step_hours == 6
        assert source.years == (1850, 1851)
        assert set(source.channels) == {*(f"{v}_{p}" for v in "ztuvq" for p in LEVELS), "tisr", "t2m", "tp"}
        expected_times = {
            1850: times_of_year(0, 7, 6, "1850-12-30T06"),
            1851: times_of_year(0, 9, 6, "1851-01-01T00"),
        }
        for year, times in expected_times.items():
            np.testing.assert_array_equal(source.times(year), times)
            for channel in source.channels:
                np.testing.assert_allclose(
                    source.read(channel, year), weather_field(channel, times, GRID), rtol=3e-7, err_msg=channel
                )
        assert any("levels are in Pa" in notice for notice in source.notices)


@pytest.mark.parametrize("units", ["m", None])
@pytest.mark.parametrize("in_metres", [True, False])
def test_units_left_behind_by_a_regridding_program_are_judged_by_the_values(tmp_path, units, in_metres):
    folder = write_cmip(tmp_path, variables=("z",), archive_names=False, periods=(("1850-01-01T06", 3),))
    (path,) = (folder / "geopotential").iterdir()
    array = data_array("z", times_of_year(0, 3, 6, "1850-01-01T06"), GRID)
    array = array / np.float32(9.807) if in_metres else array
    array.attrs = {} if units is None else {"units": units}
    write_netcdf(array.to_dataset(name="z"), path)
    with open_source(tmp_path) as source:
        expected = weather_field("z_850", source.times(1850), GRID)
        np.testing.assert_allclose(source.read("z_850", 1850), expected, rtol=3e-7)
        assert any("by the size of its values" in notice for notice in source.notices)


@pytest.mark.parametrize("calendar", ["noleap", "360_day"])
def test_calendar_without_real_dates_is_refused(tmp_path, calendar):
    folder = write_cmip(tmp_path, variables=("t",), periods=(("1850-01-01T06", 3),))
    (path,) = (folder / "temperature").iterdir()
    array = data_array("t", times_of_year(0, 3, 6, "1850-01-01T06"), GRID)
    array = array.convert_calendar(calendar, align_on="date", use_cftime=True)
    write_netcdf(array.to_dataset(), path)
    with pytest.raises(DataError, match=f"calendar '{calendar}', expected real dates"):
        open_source(tmp_path)


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


def _with_poles(array):
    return array.assign_coords(lat=np.linspace(-90, 90, 32))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_with_poles, r"another grid: 32 latitudes from -90 to 90 and 64 longitudes from 0 to 354.375, expected"),
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
