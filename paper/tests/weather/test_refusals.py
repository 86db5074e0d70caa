"""What is missing or wrong in an archive is refused: found, expected, where."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from smoe.errors import DataError
from smoe_paper.atmosphere.axes import GRIDS
from smoe_paper.atmosphere.variables import parse_channel
from smoe_paper.weather.archives import open_source
from weather_files import data_array, times_of_year, weather_field, write_netcdf, write_weatherbench

GRID = GRIDS["5.625deg"]


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    root = tmp_path_factory.mktemp("archive")
    folder = write_weatherbench(root, years=(1979, 1980, 1982), steps=4, variables=("t", "t2m"), levels=(500, 850))
    (folder / "temperature" / "temperature_1980_5.625deg.nc").unlink()
    return root


def test_missing_year_level_and_variable(archive):
    with open_source(archive) as source:
        assert source.years == (1979, 1980, 1982)
        with pytest.raises(DataError, match=r"temperature has no year 1980; it has 1979, 1982"):
            source.read("t_850", 1980)
        with pytest.raises(DataError, match=r"temperature has no level 50 hPa; it has 500, 850"):
            source.read("t_50", 1979)
        with pytest.raises(DataError, match=r"no geopotential, needed for z_500; it has temperature, 2m_temperature"):
            source.read("z_500", 1979)
        with pytest.raises(DataError, match="has no 6hr_precipitation, needed for tp"):
            source.read("tp", 1979)
        with pytest.raises(DataError, match=r"temperature has no year 1999; it has 1979, 1982"):
            source.times(1999)


def test_single_level_folder_is_a_level_of_its_variable(tmp_path):
    folder = write_weatherbench(tmp_path, years=(1979,), steps=3, variables=("t2m",))
    times = times_of_year(1979, 3)
    array = data_array("z", times, GRID).sel(level=500)
    write_netcdf(array.to_dataset(), folder / "geopotential_500" / "geopotential_500hPa_1979_5.625deg.nc")
    with open_source(tmp_path) as source:
        assert source.channels == ("z_500", "t2m")
        np.testing.assert_array_equal(source.read("z_500", 1979), weather_field("z_500", times, GRID))


def rewrite(root, folder, change, year=1979):
    path = root / "5.625deg" / folder / f"{folder}_{year}_5.625deg.nc"
    with xr.open_dataset(path) as dataset:
        dataset.load()
    write_netcdf(change(dataset).drop_encoding(), path)
    return path


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda ds: ds.isel(time=[0, 1, 2, 4, 5]),
         r"times have a gap: 1979-01-02T00:00 comes after 1979-01-01T12:00, expected steps of 360 minutes"),
        (lambda ds: ds.isel(time=[0, 1, 2, 2, 3, 4]), r"the time 1979-01-01T12:00 is there twice"),
        (lambda ds: ds.isel(time=[0, 2, 1, 3, 4, 5]), r"not in order: 1979-01-01T06:00 comes after 1979-01-01T12:00"),
        (lambda ds: ds.isel(time=[0]), "has a single time, expected times 1 h or 6 h apart"),
        (lambda ds: ds.isel(time=[0, 2, 4]), "has steps of 12 h, expected times 1 h or 6 h apart"),
        (lambda ds: ds.assign_coords(time=ds.time + np.timedelta64(400, "D")),
         "holds times from 1980-02-05T00:00 to .*, but its name says 1979"),
        (lambda ds: ds.assign_coords(time=("time", np.arange(6.0))), "times are of type float64, without units"),
        (lambda ds: ds.rename(t2m="temp"), r"holds temp, expected t2m \(2m_temperature\)"),
    ],
)  # fmt: skip
def test_times_and_names(tmp_path, change, says):
    write_weatherbench(tmp_path, years=(1979,), steps=6, variables=("t2m",), constants=False)
    rewrite(tmp_path, "2m_temperature", change)
    with pytest.raises(DataError, match=says):
        open_source(tmp_path)


def test_variables_must_have_the_same_times(tmp_path):
    write_weatherbench(tmp_path, years=(1979,), steps=6, variables=("t2m", "u10", "tp"), constants=False)
    rewrite(tmp_path, "10m_u_component_of_wind", lambda ds: ds.isel(time=slice(0, 4)))
    with open_source(tmp_path) as source:
        for ask in (source.read, lambda channel, year: source.check([channel], [year])):
            with pytest.raises(
                DataError, match=r"u_component_of_wind 1979 .* lacks 2 of 6 times, the first 1979-01-02"
            ):
                ask("u10", 1979)


@pytest.mark.parametrize(
    ("variable", "units", "says"),
    [
        ("t2m", "C", "t2m is in 'C', expected 'K'"),
        ("u10", "knots", "u10 is in 'knots', expected 'm s-1'"),
        ("tp", "mm", "tp is in 'mm', expected 'm'"),
    ],
)
def test_wrong_units(tmp_path, variable, units, says):
    write_weatherbench(tmp_path, years=(1979,), steps=2, variables=("v10", variable), constants=False)
    (folder,) = (each.name for each in (tmp_path / "5.625deg").iterdir() if not each.name.startswith("10m_v"))
    rewrite(tmp_path, folder, lambda ds: ds.assign({variable: ds[variable].assign_attrs(units=units)}))
    with pytest.raises(DataError, match=f"{says}; convert the file first"):
        open_source(tmp_path).read(variable, 1979)


@pytest.mark.parametrize(
    "units", ["m s**-1", "m/s", None]
)  # fmt: skip
def test_the_same_units_in_another_spelling(tmp_path, units):
    write_weatherbench(tmp_path, years=(1979,), steps=2, variables=("u10",), constants=False)
    attributes = {} if units is None else {"units": units}
    rewrite(tmp_path, "10m_u_component_of_wind", lambda ds: ds.assign(u10=ds.u10.drop_attrs().assign_attrs(attributes)))
    with open_source(tmp_path) as source:
        assert source.read("u10", 1979).shape == (2, 32, 64)


@pytest.mark.parametrize(
    ("variable", "channel", "change"),
    [("t", "t_850", lambda x: x - 273.15), ("z", "z_500", lambda x: x / 9.80665), ("q", "q_500", lambda x: x * 1000)],
)
def test_values_that_cannot_be_in_these_units(tmp_path, variable, channel, change):
    # The attribute says nothing; the values do.
    folder = write_weatherbench(
        tmp_path, years=(1979,), steps=2, variables=(variable,), levels=(500, 850), constants=False
    )
    (name,) = (each.name for each in folder.iterdir())
    rewrite(tmp_path, name, lambda ds: change(ds).map(lambda array: array.drop_attrs(deep=False)))
    with open_source(tmp_path) as source, pytest.raises(DataError, match="which cannot be"):
        source.read(channel, 1979)


@pytest.mark.parametrize("channel", ["q_850", "tp"])
def test_zeros_all_over_the_globe_are_no_weather(tmp_path, channel):
    name = channel.split("_")[0]
    folder = write_weatherbench(tmp_path, years=(1979,), steps=4, variables=(name,), constants=False)
    (path,) = folder.rglob("*.nc")
    with xr.open_dataset(path) as dataset:
        dataset.load()
    dataset[name][3:] = 0.0
    write_netcdf(dataset.drop_encoding(), path)
    with open_source(tmp_path) as source, pytest.raises(DataError, match=r"T18 is 0 everywhere \(1 of 4 times\)"):
        source.read(channel, 1979)


def test_paths_that_hold_no_weather(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        open_source(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"holds nothing; expected a folder 5.625deg, 2.8125deg, 1.40625deg"):
        open_source(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(DataError, match=r"holds notes.txt; expected a folder"):
        open_source(tmp_path)
    with pytest.raises(DataError, match="is a file; expected the folder"):
        open_source(tmp_path / "notes.txt")
    with pytest.raises(DataError, match=r"no resolution is named '3deg'; there are 5.625deg"):
        open_source(tmp_path, resolution="3deg")
    with pytest.raises(DataError, match="not a Zarr store"):
        open_source(tmp_path, kind="weatherbench2")
    with pytest.raises(DataError, match="no kind of weather data is named 'grib'"):
        open_source(tmp_path, kind="grib")  # pyright: ignore[reportArgumentType]
    (tmp_path / "5.625deg").mkdir()
    with pytest.raises(DataError, match="holds no weather variable"):
        open_source(tmp_path)


def test_constants_that_cannot_be(tmp_path):
    folder = write_weatherbench(tmp_path, years=(1979,), steps=2, variables=("t2m",))
    path = folder / "constants" / "constants_5.625deg.nc"
    with xr.open_dataset(path) as dataset:
        dataset.load()
    write_netcdf(dataset.assign(lsm=dataset.lsm * 100, orography=dataset.orography.where(dataset.lsm > 0)), path)
    with open_source(tmp_path) as source:
        with pytest.raises(DataError, match="lsm has values from 0 to 100, which cannot be lsm"):
            source.read_constant("lsm")
        with pytest.raises(DataError, match=r"orography has .* values missing"):
            source.read_constant("orography")
        with pytest.raises(DataError, match="has no slt; it has lsm, orography, lat2d, lon2d"):
            source.read_constant("slt")
        with pytest.raises(DataError, match="no constant field is named 'mask'"):
            source.read_constant("mask")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("z500", "no weather channel is named 'z500'; did you mean 'z_500'"),
        ("w_500", "no weather channel is named 'w_500'"),
        ("z", "channel 'z' needs a pressure level in hPa, for example z_500"),
        ("t2m_500", "t2m_500"),
        ("tp_500", "tp has no pressure levels; write 'tp'"),
    ],
)
def test_channel_names_that_are_none(name, says):
    with pytest.raises(DataError, match=says):
        parse_channel(name)
