from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from smoe.errors import DataError
from smoe_paper.atmosphere.axes import GRIDS
from smoe_paper.weather.forecasts import ForecastFile, write_forecasts

GRID = GRIDS["5.625deg"]
INITS = np.datetime64("2017-01-01T00", "h") + 12 * np.arange(40)
LEAD = 72
CHANNELS = ("z_500", "t_850", "t2m")
RNG = np.random.default_rng(0)
FIELDS = {
    name: (scale * RNG.standard_normal((len(INITS), *GRID.shape)) + 5 * scale).astype(np.float32)
    for name, scale in zip(CHANNELS, (1e4, 60.0, 55.0), strict=True)
}


def write(path: Path, **changes: np.ndarray) -> None:
    write_forecasts(path, {**FIELDS, **changes}, INITS, LEAD, GRID, "a test")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("forecasts") / "ours.nc"
    write(path)
    return path


def assert_same(file: ForecastFile) -> None:
    assert file.init_times.tolist() == INITS.tolist() and file.lead_hours == (LEAD,)
    assert file.channels == CHANNELS
    for name in CHANNELS:
        np.testing.assert_array_equal(file.read(name, slice(3, 20), 0), FIELDS[name][3:20])
    file.close()


@pytest.mark.parametrize("ending", ["nc", "zarr"])
def test_what_is_written_is_read_and_is_weatherbenchs_layout(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"forecasts.{ending}"
    write(path)
    assert_same(ForecastFile(path, CHANNELS, GRID))
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    # By xarray alone, as another program would.
    options: Any = {"engine": "zarr"} if ending == "zarr" else {}
    with xr.open_dataset(path, decode_timedelta=True, **options) as dataset:
        assert set(dataset.data_vars) == {"z", "t", "t2m"}
        for name, variable in (("z_500", "z"), ("t_850", "t"), ("t2m", "t2m")):
            assert dataset[variable].dims == ("init_time", "lead_time", "lat", "lon")
            np.testing.assert_array_equal(dataset[variable].values[:, 0], FIELDS[name])
        assert dataset["z"].attrs["units"] == "m2 s-2" and dataset["z"].attrs["level"] == 500
        assert dataset.attrs["history"].endswith("a test")
        np.testing.assert_array_equal(dataset["init_time"].values.astype("datetime64[h]"), INITS)
        assert (dataset["lead_time"].values / np.timedelta64(1, "h")).tolist() == [72.0]


def test_bad_outputs_are_refused_and_levels_keep_their_names(tmp_path: Path, written: Path) -> None:
    with pytest.raises(DataError, match=r"out\.grib must end with \.nc or \.zarr"):
        write(tmp_path / "out.grib")
    with pytest.raises(DataError, match="exists already"):
        write(written)
    broken = FIELDS["z_500"].copy()
    broken[1, 3, 4] = np.nan
    with pytest.raises(DataError, match="z_500 holds 1 values not finite"):
        write(tmp_path / "out.nc", z_500=broken)
    assert list(tmp_path.iterdir()) == []
    write(tmp_path / "out.nc", z_850=FIELDS["z_500"])
    assert set(load(tmp_path / "out.nc").data_vars) == {"z_500", "z_850", "t", "t2m"}


def load(path: Path) -> xr.Dataset:
    with xr.open_dataset(path, decode_timedelta=True) as opened:
        return opened.load()


def changed(written: Path, path: Path, kind: str) -> Path:
    """The same forecasts as another program might have written them."""
    dataset = load(written)
    if kind == "hours without units":
        dataset = dataset.assign_coords(lead_time=np.array([72]))
    elif kind == "north first":
        dataset = dataset.isel(lat=slice(None, None, -1))
    elif kind == "from the date line":
        dataset = dataset.assign_coords(lon=(dataset.lon + 180) % 360 - 180).sortby("lon")
    elif kind == "long names":
        dataset = dataset.rename(lat="latitude", lon="longitude", lead_time="prediction_timedelta")
        dataset = dataset.rename(z="geopotential", t="temperature", t2m="2m_temperature")
    elif kind == "no levels":
        for name in ("z", "t"):
            del dataset[name].attrs["level"]
    elif kind == "other order":
        dataset = dataset.transpose("lead_time", "lon", "init_time", "lat")
    dataset.to_netcdf(path)
    return path


@pytest.mark.parametrize(
    "kind", ["hours without units", "north first", "from the date line", "long names", "no levels", "other order"]
)
def test_other_programs_files_are_read_alike(written: Path, tmp_path: Path, kind: str) -> None:
    file = ForecastFile(changed(written, tmp_path / "theirs.nc", kind), CHANNELS, GRID)
    notices = {
        "hours without units": "read as hours",
        "north first": "turned round",
        "from the date line": "rolled",
        "long names": "read as lat/lon",
        "no levels": "supposed to be at 500 hPa",
    }
    assert any(notices.get(kind, "") in notice for notice in file.notices) or kind not in notices
    assert_same(file)


def test_levels_are_chosen_from_an_axis(written: Path, tmp_path: Path) -> None:
    dataset = load(written)
    field = dataset["z"].drop_attrs()
    dataset["z"] = xr.concat([field * 0, field], xr.Variable("level", [850, 500])).transpose("level", ...)
    dataset[["z"]].to_netcdf(tmp_path / "levels.nc")
    file = ForecastFile(tmp_path / "levels.nc", ("z_500", "z_850", "z_250"), GRID)
    assert file.channels == ("z_500", "z_850") and file.missing == ("z_250",)
    np.testing.assert_array_equal(file.read("z_500", slice(0, 4), 0), FIELDS["z_500"][:4])
    np.testing.assert_array_equal(file.read("z_850", slice(0, 4), 0), 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.isel(lat=slice(0, 16)), r"another grid: 16 latitudes .* regrid it first"),
        (lambda d: d.assign_coords(lat=d.lat + 1.0), "another grid"),
        (lambda d: d.rename(init_time="time"), r"dimensions time \(40\).*no init_time; if `time` is the time at which"),
        (lambda d: d.rename(lead_time="offset"), "no lead_time or prediction_timedelta"),
        (lambda d: d.drop_vars("lead_time"), "does not say what its lead_time are: the dimension has no coordinate"),
        (lambda d: d.rename(z="height", t="tt", t2m="tt2"), "holds height, tt, tt2, none of the forecasts asked for"),
        (lambda d: d.assign(z=d.z.assign_attrs(units="gpm")), "z of .*other.nc is in 'gpm', expected 'm2 s-2'"),
        (lambda d: d.isel(init_time=[3, 1, 2]), "init_time must ascend"),
        (lambda d: d.assign_coords(init_time=np.arange(40)), "init_time is of type int64, expected times"),
        (lambda d: d.assign_coords(lead_time=[0.5]), r"full hours from 0 on, got \[0\.5\]"),
        (lambda d: d.assign(z=d.z.expand_dims(member=2)), r"'member'.*expected \(init_time, lead_time, lat, lon\)"),
    ],
)  # fmt: skip
def test_other_layouts_are_refused(
    written: Path, tmp_path: Path, change: Callable[[xr.Dataset], xr.Dataset], message: str
) -> None:
    change(load(written)).to_netcdf(tmp_path / "other.nc")
    with pytest.raises(DataError, match=message):
        ForecastFile(tmp_path / "other.nc", CHANNELS, GRID)


def test_a_lost_chunk_of_a_zarr_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "forecasts.zarr"
    write(path)
    next(file for file in sorted((path / "t" / "c").rglob("*")) if file.is_file()).unlink()
    with pytest.raises(DataError, match="t lacks 1 chunks"):
        ForecastFile(path, CHANNELS, GRID)
