"""The CMIP archive's files give WeatherBench's channels, units and times."""

from __future__ import annotations

import numpy as np
import pytest

from smoe.errors import DataError
from smoe_paper.atmosphere.axes import GRIDS
from smoe_paper.atmosphere.variables import LEVELS, VARIABLES
from smoe_paper.weather.archives import open_source
from weather_files import (
    constant_field,
    data_array,
    times_of_year,
    weather_field,
    write_cmip,
    write_constants,
    write_netcdf,
)

GRID = GRIDS["5.625deg"]
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


def test_auto_recognises_files_of_periods(tmp_path):
    folder = write_cmip(tmp_path, variables=("t",))
    for path in (tmp_path, folder):
        with open_source(path) as source:
            assert source.kind == "cmip"


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


def test_constants_are_those_of_weatherbench_beside_it(tmp_path):
    write_cmip(tmp_path / "CMIP" / "MPI-ESM", variables=("t",))
    with open_source(tmp_path / "CMIP" / "MPI-ESM") as source:
        assert source.constant_names == ("lat2d", "lon2d")
        with pytest.raises(DataError, match=r"has no constants/constants_5.625deg.nc, needed for lsm"):
            source.read_constant("lsm")
    write_constants(tmp_path / "5.625deg")
    with open_source(tmp_path / "CMIP" / "MPI-ESM") as source:
        np.testing.assert_array_equal(source.read_constant("lsm"), constant_field("lsm", GRID))
        assert any("constants are WeatherBench's" in notice for notice in source.notices)


@pytest.mark.parametrize("calendar", ["noleap", "360_day"])
def test_calendar_without_real_dates_is_refused(tmp_path, calendar):
    folder = write_cmip(tmp_path, variables=("t",), periods=(("1850-01-01T06", 3),))
    (path,) = (folder / "temperature").iterdir()
    array = data_array("t", times_of_year(0, 3, 6, "1850-01-01T06"), GRID)
    array = array.convert_calendar(calendar, align_on="date", use_cftime=True)
    write_netcdf(array.to_dataset(), path)
    with pytest.raises(DataError, match=f"calendar '{calendar}', expected real dates"):
        open_source(tmp_path)


def test_cftime_dates_of_a_real_calendar_are_read(tmp_path):
    from smoe_paper.atmosphere.axes import read_time_axis

    times = times_of_year(0, 3, 6, "1850-01-01T06")
    array = data_array("t", times, GRID).convert_calendar("standard", use_cftime=True)
    assert array.time.dtype == object
    np.testing.assert_array_equal(read_time_axis(array, "here").values(), times)


def test_three_hourly_precipitation_is_refused(tmp_path):
    folder = write_cmip(tmp_path, variables=("t", "tp"), periods=(("1850-01-01T06", 4),))
    (path,) = (folder / VARIABLES["tp"].folder).iterdir()
    array = data_array("tp", times_of_year(0, 4, 3, "1850-01-01T06"), GRID)
    array.attrs["units"] = "kg m-2 s-1"
    write_netcdf(array.to_dataset(name="pr"), path)
    with open_source(tmp_path) as source, pytest.raises(DataError, match="steps of 180 minutes, expected 6-hour means"):
        source.read("tp", 1850)
