"""Files that xarray does not open by itself: odd times, groups, zip files, formats of other packages."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import smoe
from gridded_files import regional, times
from smoe.cli.fit import read_open_options
from smoe.cli.report import _recorded_data
from smoe.command_line import UsageError
from smoe.errors import DataError
from smoe.gridded._open import open_fields
from smoe.gridded._source import FieldSource
from smoe.training.run_directory import RunDirectory


def with_numbers(path: Path, numbers: np.ndarray, units: str, **attributes: str) -> Path:
    """A file whose times are numbers in some units."""
    dataset = regional(len(numbers)).assign_coords(time=("time", numbers, {"units": units, **attributes}))
    dataset.to_netcdf(path)
    return path


@pytest.mark.parametrize(
    ("numbers", "units", "attributes", "first", "last"),
    [
        ([0, 1, 14], "months since 1999-12-15", {}, "1999-12-15", "2001-02-15"),
        ([0.5, 1.5, 2.5], "months since 2000-01-01", {"calendar": "noleap"}, "2000-01-16T12:00", "2000-03-16T12:00"),
        ([0, 1, 2], "years since 1850-07-01", {}, "1850-07-01", "1852-07-01"),
        ([366.0, 1096.485, 8401.335], "hour since 0000-01-01 00:00:00", {}, "0000-01-16T06:00", "0000-12-16T01:20"),
    ],
)
def test_times_that_xarray_does_not_decode(
    tmp_path: Path, numbers: list[float], units: str, attributes: dict[str, str], first: str, last: str
) -> None:
    path = with_numbers(tmp_path / "odd.nc", np.asarray(numbers), units, **attributes)
    labels = FieldSource(open_fields(path)).labels
    assert labels is not None
    assert [labels.text(int(labels.seconds[place])) for place in (0, -1)] == [first, last]


def test_a_climatology_of_the_year_0_is_fitted_and_written(tmp_path: Path) -> None:
    path = with_numbers(tmp_path / "coads.nc", 366.0 + 730.485 * np.arange(12), "hour since 0000-01-01 00:00:00")
    model = smoe.GridRegressor(
        "layer", lead="1 month", filters=2, max_epochs=1, compare="no", device="cpu", progress=False
    )
    predicted = model.fit(path, path).predict(path)
    assert [date.month for date in predicted["time"].values] == [*range(2, 13), 1]
    predicted.to_netcdf(tmp_path / "predicted.nc")
    xr.testing.assert_equal(open_fields(tmp_path / "predicted.nc").load(), predicted)


def test_times_that_nobody_can_decode_are_no_damage(tmp_path: Path) -> None:
    path = with_numbers(tmp_path / "odd.nc", np.arange(3), "fortnights since the flood")
    with pytest.raises(
        DataError, match="time has the units 'fortnights since the flood', which cannot be decoded"
    ) as e:
        open_fields(path)
    assert "damaged" not in str(e.value) and "\n" not in str(e.value)
    raw = open_fields(path, open_options={"decode_times": False})
    with pytest.raises(DataError, match="holds no dates but int64 values such as 0: give it units"):
        FieldSource(raw)


@pytest.mark.parametrize("kind", ["nc", "zarr", "zarr.zip"])
def test_groups(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"data.{kind}"
    fields = regional()
    if kind == "nc":
        fields.to_netcdf(path, group="model/run")
    else:
        folder = tmp_path / "folder.zarr"
        fields.to_zarr(folder, group="model/run", consolidated=False)
        if kind == "zarr":
            folder.rename(path)
        else:
            zipped(folder, path)
    with pytest.raises(DataError, match=r"has its variables in the groups /model/run: name one .* --open group=/model"):
        open_fields(path)
    xr.testing.assert_equal(open_fields(path, open_options={"group": "/model/run"}).load(), fields)
    with pytest.raises(DataError) as caught:
        open_fields(path, open_options={"group": "model/walk"})
    assert "damaged" not in str(caught.value)


def zipped(folder: Path, path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(folder))
    return path


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zip_files_of_zarr(tmp_path: Path, zarr_format: int) -> None:
    fields = regional()
    fields.to_zarr(tmp_path / "folder.zarr", zarr_format=zarr_format, consolidated=False)
    path = zipped(tmp_path / "folder.zarr", tmp_path / "data.zarr.zip")
    xr.testing.assert_equal(open_fields(path).load(), fields)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match="the file is damaged or incomplete"):
        open_fields(path)
    next(file for file in (tmp_path / "folder.zarr/t2m").rglob("*") if file.is_file() and file.name[0] == "0").unlink()
    with pytest.raises(DataError, match="t2m lacks 1 chunks of its 1 chunk files"):
        open_fields(zipped(tmp_path / "folder.zarr", path))


def test_other_formats_are_named_and_read_by_their_engine(tmp_path: Path) -> None:
    path = tmp_path / "fields.pp"
    path.write_bytes(b"\0\0\1\0UM fields")
    with pytest.raises(DataError, match=r"fields\.pp is neither NetCDF nor GRIB nor Zarr: it begins with .*engine"):
        open_fields(path)
    with pytest.raises(DataError, match=r"fields\.pp: it cannot be decoded \(.*nothing.*open_options, --open"):
        open_fields(path, open_options={"engine": "nothing"})
    regional().to_netcdf(path, format="NETCDF3_CLASSIC", engine="scipy")
    xr.testing.assert_equal(open_fields(path, open_options={"engine": "scipy"}).load(), regional())
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match=r"fields\.pp is truncated: its header declares"):
        open_fields(path, open_options={"engine": "netcdf4"})
    regional().to_netcdf(path, format="NETCDF3_CLASSIC", engine="scipy")
    with pytest.raises(DataError, match=r"cannot be decoded .*no_such_option"):
        open_fields(path, open_options={"no_such_option": 3})


def test_hindcasts_that_start_in_plain_years() -> None:
    years = np.arange(1954, 1974)
    values = np.random.default_rng(0).normal(size=(20, 3, 4, 5)).astype(np.float32)
    rows, columns = np.meshgrid(40.0 + np.arange(4), 5.0 + np.arange(5), indexing="ij")
    pixels = {"TLAT": (("nlat", "nlon"), rows, {"units": "degrees_north"}),
              "TLONG": (("nlat", "nlon"), columns, {"units": "degrees_east"})}  # fmt: skip
    hindcasts = xr.Dataset(
        {"SST": (("init", "lead", "nlat", "nlon"), values)}, {"init": years, "lead": np.arange(1, 4), **pixels}
    )
    truth = xr.Dataset({"SST": (("time", "nlat", "nlon"), values[:, 0])}, {"time": years + 1, **pixels})
    source = FieldSource(open_fields(hindcasts))
    assert source.lead_times is not None and (source.lead_times / 365 / 86400).tolist() == [1.0, 2.0, 3.0]
    model = smoe.GridRegressor("layer", filters=2, max_epochs=1, compare="no", device="cpu", progress=False)
    model.fit(hindcasts, truth)
    assert model.fitted.samples["train"] + model.fitted.samples["validation"] > 40
    predicted = model.predict(hindcasts)
    assert [date.year for date in predicted["valid_time"].values[0]] == [1955, 1956, 1957]
    # Counters are no years.
    with pytest.raises(DataError, match="holds no dates but int64 values such as 0"):
        FieldSource(truth.assign_coords(time=np.arange(20)))


def test_single_forecasts_follow_each_other(tmp_path: Path) -> None:
    leads = ("step", np.arange(1, 4) * np.timedelta64(6, "h"), {"standard_name": "forecast_period"})
    for day in (1, 2):
        run = regional(3, seed=day).rename(time="step").assign_coords(step=leads)
        start = ((), times(1, f"2001-01-0{day}")[0], {"standard_name": "forecast_reference_time"})
        run.assign_coords(time=start).to_netcdf(tmp_path / f"run{day}.nc")
    one, both = (FieldSource(open_fields(str(tmp_path / name))) for name in ("run1.nc", "run*.nc"))
    assert one.lead_times is not None and one.lead_times.tolist() == [21600, 43200, 64800]
    assert (one.num_positions, both.num_positions) == (3, 6)
    np.testing.assert_array_equal(both.read(np.asarray([4]))[0, 0], regional(3, seed=2)["t2m"].values[1])


def test_targets_of_which_each_valid_time_occurs_once() -> None:
    # As ERA5 has its sums of rain: starts at 6 and 18 hours, and a field for each of the twelve hours that follow.
    values = np.arange(4 * 12 * 6, dtype=np.float32).reshape(4, 12, 2, 3)
    starts = times(1, "2001-01-01T06", "h") + np.arange(4) * np.timedelta64(12, "h")
    valid = starts[:, None] + np.arange(1, 13) * np.timedelta64(1, "h")
    coords = {"time": ("time", starts, {"standard_name": "forecast_reference_time"}),
              "step": ("step", np.arange(1, 13), {"units": "hours"}), "lat": [40.0, 41.0], "lon": [5.0, 6.0, 7.0],
              "valid_time": (("time", "step"), valid)}  # fmt: skip
    rain = xr.Dataset({"tp": (("time", "step", "lat", "lon"), values)}, coords)
    source = FieldSource(open_fields(rain, "targets"), where="targets")
    assert source.lead_times is None and source.labels is not None
    np.testing.assert_array_equal(source.labels.coordinate(source.labels.seconds), valid.ravel())
    np.testing.assert_array_equal(source.read(np.arange(48))[:, 0], values.reshape(48, 2, 3))
    assert source.notes == ("start and lead times of the targets are taken as valid times",)
    # Inputs stay forecasts, and so do targets of which a valid time occurs twice.
    assert FieldSource(open_fields(rain)).lead_times is not None
    assert "step" in open_fields(rain.assign_coords(step=("step", 2 * np.arange(1, 13), {"units": "hours"})), "targets")


def test_options_reach_all_parts_of_the_regressor(tmp_path: Path) -> None:
    path = tmp_path / "data.nc"
    fields = regional(20).assign_coords(time=times(20))
    fields.to_netcdf(path, group="run")
    options = {"group": "run"}
    model = smoe.GridRegressor(
        "layer", lead="1D", filters=2, max_epochs=1, compare="no", device="cpu", progress=False
    ).fit(path, path, open_options=options)
    xr.testing.assert_equal(model.predict(path, open_options=options), model.predict(fields))
    table = model.score(path, path, open_options=options)
    assert table.value("model") == pytest.approx(model.score(fields, fields).value("model"), rel=1e-6)


def test_options_of_the_command_line() -> None:
    given = ("group=run", "decode_times=false", 'filter_by_keys={"level": 500}', "engine=h5netcdf")
    expected = {"group": "run", "decode_times": False, "filter_by_keys": {"level": 500}, "engine": "h5netcdf"}
    assert read_open_options(given) == expected
    with pytest.raises(UsageError, match="--open takes KEY=VALUE, such as group=forecast, got 'run'"):
        read_open_options(("run",))


def test_the_command_of_a_run_chooses_no_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    regional().to_netcdf(tmp_path / "data.nc", group="run")
    words = ["fit", str(tmp_path / "data.nc"), str(tmp_path / "data.nc"), "-o", str(tmp_path), "--open", "group=run"]
    monkeypatch.setattr(RunDirectory, "read_environment", lambda self: {"command": words})
    found = _recorded_data(tmp_path)
    assert found is not None and found.open_options == {"group": "run"}
    for other in ("engine=cfgrib", 'backend_kwargs={"indexpath": "data.idx"}'):
        words[-1] = other
        assert _recorded_data(tmp_path) is None
