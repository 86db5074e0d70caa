"""Archives as downloaded give the fields that were written, whichever way their axes run; what is wrong is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from smoe.errors import DataError
from smoe_paper.atmosphere.fields import GRIDS
from smoe_paper.atmosphere.variables import DEFAULT_INPUTS, parse_channel
from smoe_paper.weather.archive import Archive
from weather_files import (
    constant_field,
    data_array,
    hourly_precipitation,
    times_of_year,
    weather_field,
    write_cmip,
    write_netcdf,
    write_weatherbench,
)

GRID = GRIDS["5.625deg"]
TIMES = times_of_year(1979, 4)


@pytest.fixture(scope="module")
def six_hourly(tmp_path_factory):
    root = tmp_path_factory.mktemp("weatherbench")
    write_weatherbench(root, years=(1979, 1980, 1981))
    return root


def test_reads_all_default_channels_and_constants(six_hourly):
    archive = Archive(six_hourly)
    assert (archive.grid, archive.step_hours, archive.years) == (GRID, 6, [1979, 1980, 1981])
    assert set(DEFAULT_INPUTS) == set(archive.channels)
    times = np.concatenate([archive.times(year) for year in (1979, 1980)])
    np.testing.assert_array_equal(times[12:], times_of_year(1980, 12))
    assert times.dtype == np.dtype("datetime64[h]")
    for channel in DEFAULT_INPUTS:
        fields = archive.read(channel, times)
        assert fields.dtype == np.float32
        np.testing.assert_array_equal(fields, weather_field(channel, times, GRID), err_msg=channel)
    np.testing.assert_array_equal(archive.read("t2m", times[[3, 7, 14]]), weather_field("t2m", times[[3, 7, 14]], GRID))
    assert archive.constants == ["lsm", "orography", "lat2d", "lon2d"]
    for name in archive.constants:
        np.testing.assert_array_equal(archive.read_constant(name), constant_field(name, GRID), err_msg=name)
    with pytest.raises(DataError, match="no constant field is named 'mask'"):
        archive.read_constant("mask")


def test_hourly_precipitation_is_summed_over_six_hours_and_across_the_year(tmp_path):
    times = {1979: times_of_year(1979, 30, 1, "1979-12-30T18"), 1980: times_of_year(1980, 20, 1)}
    write_weatherbench(tmp_path, years=(1979, 1980), step_hours=1, variables=("t2m", "tp"), times=times)
    archive, together = Archive(tmp_path), np.concatenate([times[1979], times[1980]])
    assert (archive.step_hours, archive.channels) == (1, ["t2m", "tp"])
    totals = archive.read("tp", together)
    assert np.isnan(totals[:5]).all()
    hourly = hourly_precipitation(together, GRID).astype(np.float64)
    np.testing.assert_allclose(totals[5:], [hourly[i - 5 : i + 1].sum(0) for i in range(5, 50)], rtol=1e-6)


def test_cmip_names_heights_levels_and_periods(tmp_path):
    # Two files of which the first ends with hour 0 of the next year, as in the archive.
    write_cmip(tmp_path, (("1850-12-30T06", 8), ("1851-01-01T06", 8)))
    archive = Archive(tmp_path)
    assert archive.years == [1850, 1851]
    np.testing.assert_array_equal(archive.times(1851), times_of_year(0, 9, 6, "1851-01-01T00"))
    for year in (1850, 1851):
        for channel in archive.channels:
            expected = weather_field(channel, archive.times(year), GRID)
            np.testing.assert_allclose(archive.read(channel, archive.times(year)), expected, rtol=3e-7)


def read_year(path):
    archive = Archive(path)
    return archive.read("t_850", archive.times(1979))


def write_one(root: Path, array: xr.DataArray, folder: str = "temperature") -> Path:
    return write_netcdf(array.to_dataset(name=array.name), root / "5.625deg" / folder / f"{folder}_1979_5.625deg.nc")


CHANGES = {
    "north first": lambda array: array.isel(lat=slice(None, None, -1)),
    "from -180": lambda array: array.assign_coords(lon=(array.lon + 180) % 360 - 180).sortby("lon"),
    "long names": lambda array: array.rename(lat="latitude", lon="longitude"),
    "another order": lambda array: array.transpose("level", "lon", "time", "lat"),
    "levels in Pa": lambda array: array.assign_coords(level=("level", array.level.values * 100.0)),
    "rounded": lambda array: array.assign_coords(lon=array.lon.astype("f4") + np.float32(1e-5)),
    "an axis of one": lambda array: array.expand_dims(number=[0]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_axes_are_read(tmp_path, change):
    write_one(tmp_path, CHANGES[change](data_array("t", TIMES, GRID)))
    for channel in ("t_50", "t_850"):
        np.testing.assert_array_equal(Archive(tmp_path).read(channel, TIMES), weather_field(channel, TIMES, GRID))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda array: array.assign_coords(lat=np.linspace(-80, 70, 32)), "another grid: 32 latitudes from -80 to 70"),
        (lambda array: array.isel(lon=slice(0, 32)), "another grid: 32 latitudes .* 32 longitudes from 0 to 174.375"),
        (lambda array: array.rename(lat="y"), r"dimensions \('time', 'level', 'y', 'lon'\), expected one named lat or"),
        (lambda array: array.drop_vars("lon"), "has no values for its dimension 'lon'"),
        (lambda array: array.rename(level="height"), "expected one with values named level or plev"),
        (lambda array: array.assign_coords(level=[50, 250, 250, 600, 700, 850, 925]), "holds a level twice"),
        (lambda array: xr.concat([array, array], xr.Variable("number", [0, 1])), "has the dimension 'number'"),
        (lambda array: array.isel(time=[0, 2, 1, 3]), "times must ascend, each once, but .*T06:00 comes after .*T12"),
        (lambda array: array.isel(time=[0]), "has times that are not 1 h or 6 h apart"),
        (lambda array: array.isel(time=[0, 1, 3]), "T18:00 comes after .*T06:00, expected steps of 6 h"),
        (lambda array: array.assign_coords(time=array.time + np.timedelta64(400, "D")), "which its name does not say"),
        (lambda array: array.assign_coords(time=("time", np.arange(4.0))), "times are of type float64, without units"),
        (
            lambda array: array.convert_calendar("noleap", align_on="date", use_cftime=True),
            "times are of the calendar 'noleap', expected real dates",
        ),
        (lambda array: array.rename("temp"), "holds temp, expected t or ta"),
        (lambda array: array.assign_attrs(units="C"), "t is in 'C', expected 'K'"),
        (lambda array: array - 273.15, r"which cannot be t in K \(between 100 and 400\)"),
        (lambda array: array * 0 + 250, r"is 250 everywhere \(4 of 4 times\)"),
    ],
)
def test_refused(tmp_path, change, says):
    array = data_array("t", TIMES, GRID)
    changed = change(array)
    if "units" not in changed.attrs:
        changed.attrs = array.attrs
    write_one(tmp_path, changed)
    with pytest.raises(DataError, match=says):
        read_year(tmp_path)


def test_what_is_missing_is_named(tmp_path):
    folder = write_weatherbench(tmp_path, years=(1979, 1980, 1982), steps=4, variables=("t", "t2m", "u10"))
    (folder / "temperature" / "temperature_1980_5.625deg.nc").unlink()
    path = folder / "10m_u_component_of_wind" / "10m_u_component_of_wind_1979_5.625deg.nc"
    with xr.open_dataset(path) as dataset:
        dataset.load()
    write_netcdf(dataset.isel(time=slice(0, 2)).drop_encoding(), path)
    archive, times = Archive(tmp_path), times_of_year(1979, 4)
    for channel, year, says in (
        ("t_850", 1980, "temperature has no year 1980; it has 1979, 1982"),
        ("t_100", 1979, "has no t_100; it has t_50, t_250"),
        ("z_500", 1979, "has no z_500; it has"),
        ("u10", 1979, "10m_u_component_of_wind .* lacks 2 of 4 times that others have, such as 1979-01-01T18"),
    ):
        for ask in (lambda c, y: archive.read(c, times_of_year(y, 4)), lambda c, y: archive.check([c], y)):
            with pytest.raises(DataError, match=says):
                ask(channel, year)
    with pytest.raises(DataError, match="has no year 1999; it has 1979-1980, 1982"):
        archive.times(1999)
    np.testing.assert_array_equal(archive.read("t2m", times), weather_field("t2m", times, GRID))


def test_single_level_folder_is_a_level_of_its_variable(tmp_path):
    folder = write_weatherbench(tmp_path, years=(1979,), steps=3, variables=("t2m",))
    times = times_of_year(1979, 3)
    array = data_array("z", times, GRID).sel(level=500)
    write_netcdf(array.to_dataset(), folder / "geopotential_500" / "geopotential_500hPa_1979_5.625deg.nc")
    archive = Archive(tmp_path)
    assert archive.channels == ["z_500", "t2m"]
    np.testing.assert_array_equal(archive.read("z_500", times), weather_field("z_500", times, GRID))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_truncated_files_are_refused(tmp_path, share):
    write_weatherbench(tmp_path, years=(1979,), variables=("t2m",), constants=False)
    (path,) = tmp_path.rglob("*.nc")
    with path.open("r+b") as file:
        file.truncate(int(path.stat().st_size * share))
    with pytest.raises(DataError, match=r"2m_temperature_1979_5.625deg.nc.*(damaged|truncated|no NetCDF|empty)"):
        Archive(tmp_path).read("t2m", times_of_year(1979, 12))


def test_folders_without_weather(tmp_path):
    with pytest.raises(DataError, match="is not a folder"):
        Archive(tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(DataError, match=r"holds notes.txt; expected a folder 5.625deg, 2.8125deg, 1.40625deg"):
        Archive(tmp_path)
    (tmp_path / "5.625deg").mkdir()
    with pytest.raises(DataError, match="holds no weather variable"):
        Archive(tmp_path)
    with pytest.raises(DataError, match=r"expected a folder 2.8125deg"):
        Archive(tmp_path, "2.8125deg")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("z500", "no weather channel is named 'z500'; did you mean 'z_500'"),
        ("z", "channel 'z' needs a pressure level in hPa, for example z_500"),
        ("tp_500", "tp has no pressure levels; write 'tp'"),
    ],
)
def test_channel_names_that_are_none(name, says):
    with pytest.raises(DataError, match=says):
        parse_channel(name)
