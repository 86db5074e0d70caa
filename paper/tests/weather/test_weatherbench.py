"""WeatherBench's files, as downloaded, give the fields that were written."""

from __future__ import annotations

import numpy as np
import pytest

from smoe_paper.atmosphere.axes import GRIDS
from smoe_paper.atmosphere.variables import DEFAULT_INPUTS, LEVELS
from smoe_paper.weather.archives import open_source
from weather_files import constant_field, hourly_precipitation, times_of_year, weather_field, write_weatherbench

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


def test_only_the_level_asked_for_is_read(tmp_path, monkeypatch):
    import xarray.backends.netCDF4_ as backend

    write_weatherbench(tmp_path, years=(1979,), variables=("z",), constants=False)
    shapes = []
    original = backend.NetCDF4ArrayWrapper._getitem

    def record(self, key):
        values = original(self, key)
        shapes.append(np.asarray(values).shape)
        return values

    with open_source(tmp_path) as source:
        source.times(1979)
        monkeypatch.setattr(backend.NetCDF4ArrayWrapper, "_getitem", record)
        source.read(f"z_{LEVELS[3]}", 1979)
    assert shapes == [(12, 32, 64)]
