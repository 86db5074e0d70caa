"""The reader on real data: ERA5 from cfgrib's sample, regridded, equals a direct xarray computation."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from smoe_paper.atmosphere.axes import GRIDS
from smoe_paper.atmosphere.variables import VARIABLES
from smoe_paper.weather.archives import open_source
from weather_files import times_of_year, write_netcdf

SAMPLE = Path(os.environ.get("SMOE_ERA5_SAMPLE", Path(__file__).parents[3] / "data/era5-sample/era5-levels-members.nc"))

pytestmark = [
    pytest.mark.dataset,
    pytest.mark.skipif(not SAMPLE.exists(), reason=f"no {SAMPLE}: run `smoe data fetch era5-sample` in the repository"),
]

MEMBERS = (0, 7)


def on_grid(sample: xr.Dataset, resolution: str) -> xr.Dataset:
    """The sample on WeatherBench's grid, by xarray."""
    pytest.importorskip("scipy", reason="xarray interpolates by scipy")
    grid = GRIDS[resolution]
    wrapped = xr.concat([sample, sample.isel(longitude=[0]).assign_coords(longitude=[360.0])], "longitude",
                        data_vars="minimal", coords="minimal", compat="override", join="outer")  # fmt: skip
    return wrapped.interp(latitude=list(grid.latitude), longitude=list(grid.longitude), method="linear")


def write_members(root: Path, resolution: str, times: np.ndarray) -> None:
    """Each member is a root of its own, in WeatherBench's layout but as ERA5 lies: north first, 850 before 500 hPa."""
    grid = GRIDS[resolution]
    with xr.open_dataset(SAMPLE, engine="netcdf4", decode_timedelta=False) as sample:
        fields = on_grid(sample, resolution)
        for member in MEMBERS:
            for name in ("z", "t"):
                array = fields[name].sel(number=member)
                dims = ("time", "level", "latitude", "longitude")
                coords = {
                    "time": times.astype("datetime64[ns]"),
                    "level": array.isobaricInhPa.values.astype(np.int32),
                    "latitude": list(grid.latitude),
                    "longitude": list(grid.longitude),
                }
                written = xr.DataArray(
                    array.values.astype(np.float32), coords, dims, name, {"units": sample[name].units}
                )
                folder = VARIABLES[name].folder
                path = root / str(member) / resolution / folder / f"{folder}_2017_{resolution}.nc"
                write_netcdf(written.isel(latitude=slice(None, None, -1)).to_dataset(), path)


@pytest.mark.parametrize("resolution", ["5.625deg", "2.8125deg"])
def test_reader_equals_a_direct_xarray_computation(tmp_path, resolution):
    # The sample's times are 12 h apart, WeatherBench's never are: the fields are ERA5's, the clock is relabelled.
    write_members(tmp_path, resolution, times_of_year(2017, 4))
    with xr.open_dataset(SAMPLE, engine="netcdf4", decode_timedelta=False) as sample:
        direct = on_grid(sample, resolution)
        for member in MEMBERS:
            with open_source(tmp_path / str(member)) as source:
                assert source.channels == ("z_500", "z_850", "t_500", "t_850")
                assert source.notices[0].startswith("axes are named latitude/longitude")
                assert source.notices[1].startswith("latitude runs north to south")
                for channel in source.channels:
                    name, level = channel.split("_")
                    expected = direct[name].sel(number=member, isobaricInhPa=float(level)).values
                    actual = source.read(channel, 2017)
                    # float32 holds seven digits; the computation is in float64.
                    np.testing.assert_allclose(actual, expected, rtol=2e-7, err_msg=channel)
                    assert actual.std() > 1.0


def test_real_fields_have_the_size_of_weather(tmp_path):
    write_members(tmp_path, "5.625deg", times_of_year(2017, 4))
    with open_source(tmp_path / "0") as source:
        weights = np.cos(np.radians(source.grid.lat2d()))
        weights /= weights.mean()
        # Climatological global means: 5.55e4 m2 s-2 and 280 K within a few percent.
        assert (source.read("z_500", 2017) * weights).mean() == pytest.approx(5.55e4, rel=0.03)
        assert (source.read("t_850", 2017) * weights).mean() == pytest.approx(280.0, rel=0.03)
