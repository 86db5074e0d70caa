"""Archives as downloaded give the fields that were written, whichever way their axes run; what is wrong is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from smoe.errors import DataError
from smoe_paper.atmosphere.variables import DEFAULT_INPUTS, parse_channel
from smoe_paper.weather.archive import Archive
from weather_files import (
    GRID,
    constant_field,
    data_array,
    hourly_precipitation,
    times_of_year,
    weather_field,
    write_netcdf,
    write_weatherbench,
)

TIMES = times_of_year(1979, 4)


def read(root: Path, channel: str, year: int = 1979) -> np.ndarray:
    return Archive(root).open(year, (channel,))[channel].values


def test_reads_all_default_channels_and_constants(tmp_path: Path) -> None:
    write_weatherbench(tmp_path, years=(1979, 1980))
    archive, times = Archive(tmp_path), times_of_year(1980, 12)
    assert (archive.grid, archive.years) == (GRID, [1979, 1980])
    fields = archive.open(1980, DEFAULT_INPUTS)
    np.testing.assert_array_equal(fields.time.values, times)
    for channel in DEFAULT_INPUTS:
        assert fields[channel].dtype == np.float32
        np.testing.assert_array_equal(fields[channel], weather_field(channel, times, GRID), err_msg=channel)
    assert archive.constants == ["lsm", "orography", "lat2d", "lon2d"]
    for name in archive.constants:
        np.testing.assert_array_equal(archive.read_constant(name), constant_field(name, GRID), err_msg=name)
    with pytest.raises(DataError, match="no constant field is named 'mask'"):
        archive.read_constant("mask")


def test_hourly_precipitation_is_summed_over_six_hours_and_across_the_year(tmp_path: Path) -> None:
    times = {1979: times_of_year(1979, 30, 1, "1979-12-30T18"), 1980: times_of_year(1980, 20, 1)}
    write_weatherbench(tmp_path, years=(1979, 1980), step_hours=1, variables=("t2m", "tp"), times=times)
    totals = np.concatenate([read(tmp_path, "tp", year) for year in (1979, 1980)])
    assert np.isnan(totals[:5]).all()
    hourly = hourly_precipitation(np.concatenate([times[1979], times[1980]]), GRID).astype(np.float64)
    np.testing.assert_allclose(totals[5:], [hourly[i - 5 : i + 1].sum(0) for i in range(5, 50)], rtol=1e-6)


def write_one(root: Path, array: xr.DataArray, folder: str = "temperature") -> Path:
    return write_netcdf(array.to_dataset(name=array.name), root / "5.625deg" / folder / f"{folder}_1979_5.625deg.nc")


CHANGES: dict[str, Callable[[xr.DataArray], xr.DataArray]] = {
    "north first": lambda array: array.isel(lat=slice(None, None, -1)),
    "from -180": lambda array: array.assign_coords(lon=(array.lon + 180) % 360 - 180).sortby("lon"),
    "long names": lambda array: array.rename(lat="latitude", lon="longitude"),
    "another order": lambda array: array.transpose("level", "lon", "time", "lat"),
    "levels in Pa": lambda array: array.assign_coords(level=("level", array.level.values * 100.0)),
    "rounded": lambda array: array.assign_coords(lon=array.lon.astype("f4") + np.float32(1e-5)),
    "an axis of one": lambda array: array.expand_dims(number=[0]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_axes_are_read(tmp_path: Path, change: str) -> None:
    write_one(tmp_path, CHANGES[change](data_array("t", TIMES, GRID)))
    for channel in ("t_50", "t_850"):
        np.testing.assert_array_equal(read(tmp_path, channel), weather_field(channel, TIMES, GRID))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda array: array.assign_coords(lat=np.linspace(-80, 70, 32)), "another grid: 32 latitudes from -80 to 70"),
        (lambda array: array.isel(lon=slice(0, 32)), "another grid: 32 latitudes .* 32 longitudes from 0 to 174.375"),
        (lambda array: array.rename(lat="y"), r"dimensions \(.*'y', 'lon'\), expected one with values named lat or"),
        (lambda array: array.drop_vars("lon"), "expected one with values named lon or"),
        (lambda array: array.rename(level="height"), "expected one with values named level or plev"),
        (lambda array: array.assign_coords(level=[50, 250, 250, 600, 700, 850, 925]), "holds a level twice"),
        (lambda array: xr.concat([array, array], xr.Variable("number", [0, 1])), "has the dimension 'number'"),
        (lambda array: array.isel(time=[0, 2, 1, 3]), "times must ascend, each once, but .*T06:00 comes after .*T12"),
        (lambda array: array.isel(time=[0, 1, 3]), "T18:00 comes after .*T06:00, expected steps of 360 minutes"),
        (lambda array: array.assign_coords(time=array.time + np.timedelta64(400, "D")), "which its name does not say"),
        (lambda array: array.assign_coords(time=("time", np.arange(4.0))), "times are of type float64"),
        (lambda array: array.convert_calendar("noleap", align_on="date", use_cftime=True), "of the standard calendar"),
        (lambda array: array.rename("temp"), "holds temp, expected t"),
        (lambda array: array.assign_attrs(units="C"), "t is in 'C', expected 'K'"),
        (lambda array: array.sel(level=[500]), "has no level 850 hPa; it has 500"),
    ],
)
def test_refused(tmp_path: Path, change: Callable[[xr.DataArray], xr.DataArray], says: str) -> None:
    write_one(tmp_path, change(data_array("t", TIMES, GRID)))
    with pytest.raises(DataError, match=says):
        read(tmp_path, "t_850")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    folder = write_weatherbench(tmp_path, years=(1979, 1980), steps=4, variables=("t", "t2m", "u10"))
    (folder / "temperature" / "temperature_1980_5.625deg.nc").unlink()
    write_one(tmp_path, data_array("u10", TIMES[:2], GRID), "10m_u_component_of_wind")
    archive = Archive(tmp_path)
    for channels, year, says in (
        (("t_850",), 1980, "has no t_850 of 1980; temperature has the years 1979"),
        (("z_500",), 1979, "has no z_500 of 1979; geopotential has the years none"),
        (("u10", "t2m"), 1979, "u10 of 1979 .* lacks 2 of 4 times that others have, such as 1979-01-01T18"),
    ):
        with pytest.raises(DataError, match=says):
            archive.open(year, channels)


def test_single_level_folder_is_a_level_of_its_variable(tmp_path: Path) -> None:
    folder = write_weatherbench(tmp_path, years=(1979,), steps=4, variables=("t2m",))
    array = data_array("z", TIMES, GRID).sel(level=500)
    write_netcdf(array.to_dataset(), folder / "geopotential_500" / "geopotential_500hPa_1979_5.625deg.nc")
    np.testing.assert_array_equal(read(tmp_path, "z_500"), weather_field("z_500", TIMES, GRID))


@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_truncated_files_are_refused(tmp_path: Path, share: float) -> None:
    write_weatherbench(tmp_path, years=(1979,), variables=("t2m",), constants=False)
    (path,) = tmp_path.rglob("*.nc")
    with path.open("r+b") as file:
        file.truncate(int(path.stat().st_size * share))
    with pytest.raises(DataError, match=r"2m_temperature_1979_5.625deg.nc.*(damaged|truncated|no NetCDF|empty)"):
        read(tmp_path, "t2m")


def test_folders_without_weather(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a folder"):
        Archive(tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(DataError, match=r"holds notes.txt, expected a folder 5.625deg or 2.8125deg"):
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
def test_channel_names_that_are_none(name: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        parse_channel(name)
