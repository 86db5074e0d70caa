"""A Zarr store with WeatherBench-2's names gives WeatherBench's fields."""

from __future__ import annotations

import numpy as np
import pytest

from smoe.errors import DataError
from smoe_paper.atmosphere.axes import GRIDS
from smoe_paper.atmosphere.variables import DEFAULT_INPUTS
from smoe_paper.weather.archives import open_source
from weather_files import constant_field, times_of_year, weather_field, weatherbench2_dataset, write_weatherbench2

GRID = GRIDS["5.625deg"]
TIMES = times_of_year(0, 10, 6, "1959-12-31T00")


@pytest.mark.parametrize("layout", ["v2", "v3", "shards"])
def test_fields_years_and_constants(tmp_path, layout):
    dataset = weatherbench2_dataset(TIMES)
    options = {"v2": {}, "v3": {"zarr_format": 3}, "shards": {"zarr_format": 3, "chunk_steps": 2, "shard_steps": 4}}
    path = write_weatherbench2(tmp_path / "era5.zarr", dataset, **options[layout])
    assert dataset["geopotential"].dims == ("time", "level", "longitude", "latitude")
    with open_source(path) as source:
        assert (source.kind, source.step_hours, source.years) == ("weatherbench2", 6, (1959, 1960))
        assert set(source.channels) == set(DEFAULT_INPUTS)
        for year, times in ((1959, TIMES[:4]), (1960, TIMES[4:])):
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


def test_names_of_another_archive_are_refused(tmp_path):
    dataset = weatherbench2_dataset(TIMES, ("t2m",)).rename({"2m_temperature": "t2m"})
    path = write_weatherbench2(tmp_path / "era5.zarr", dataset)
    with pytest.raises(DataError, match=r"has the variables .*t2m.*, expected WeatherBench-2's: geopotential,"):
        open_source(path)


def test_missing_variable_is_named_as_in_the_store(tmp_path):
    path = write_weatherbench2(tmp_path / "era5.zarr", weatherbench2_dataset(TIMES, ("t2m",)))
    with open_source(path) as source:
        with pytest.raises(DataError, match="has no total_precipitation_6hr, needed for tp"):
            source.read("tp", 1959)
        with pytest.raises(DataError, match=r"has no year 1979; it has 1959-1960"):
            source.read("t2m", 1979)
