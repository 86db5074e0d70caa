"""Real files of several kinds of grids, from the package iris-sample-data, trained end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import smoe
from gridded_files import cosines, times
from smoe.errors import DataError
from smoe.gridded._open import open_fields
from smoe.gridded._source import FieldSource
from smoe.meshes._mesh import on_sphere

iris_sample_data = pytest.importorskip("iris_sample_data")
FILES = Path(iris_sample_data.path)
SMALL: dict[str, Any] = {"device": "cpu", "progress": False, "compare": "no", "net": "layer", "filters": 2}


def rmse(difference: xr.DataArray, latitude: xr.DataArray) -> float:
    squared = (difference.astype(np.float64) ** 2).weighted(cosines(latitude))
    return float(np.sqrt(squared.mean([dim for dim in difference.dims if dim != "time"]).mean()))


def test_temperature_of_the_next_year_in_a_calendar_of_360_days() -> None:
    path = FILES / "A1B_north_america.nc"
    model = smoe.GridRegressor(lead="1 year", max_epochs=3, **SMALL)
    model.fit(path, path, validation="2040:2069", test="2070:2099")
    with open_fields(path) as dataset:
        truth = dataset["air_temperature"].load()
    predicted = model.predict(path)
    assert predicted["air_temperature"].attrs["units"] == "K" and "latitude_longitude" in predicted.data_vars
    assert predicted["time"].values[0].calendar == "360_day"
    period = slice("2071", "2099")
    table = model.score(path, path, period="2070:2099")
    assert table.num_samples == 29
    ours = predicted["air_temperature"].sel(time=period) - truth.sel(time=period)
    assert table.value("model") == pytest.approx(rmse(ours, truth["latitude"]), rel=1e-4)
    kept = truth.shift(time=1).sel(time=period) - truth.sel(time=period)
    assert table.value("persistence") == pytest.approx(rmse(kept, truth["latitude"]), rel=1e-4)


def test_one_scenario_from_another() -> None:
    model = smoe.GridRegressor(max_epochs=2, **SMALL)
    a1b, e1 = FILES / "A1B_north_america.nc", FILES / "E1_north_america.nc"
    model.fit(a1b, e1, train="1860:2039", validation="2040:2069")
    table = model.score(a1b, e1, period="2070:2099")
    with open_fields(a1b) as x, open_fields(e1) as y:
        raw = (x["air_temperature"] - y["air_temperature"]).sel(time=slice("2070", "2099")).load()
    assert table.value("raw input") == pytest.approx(rmse(raw, raw["latitude"]), rel=1e-4)


def test_sea_surface_temperature_with_land_masked_around_the_globe() -> None:
    path = FILES / "ostia_monthly.nc"
    model = smoe.GridRegressor(lead="1 month", max_epochs=2, batch_size=8, **SMALL)
    model.fit(path, path, validation="2009-10:2010-02")
    assert model.fitted.grid.closes_circle and model.fitted.shape.padding_mode == "longitude"
    predicted = model.predict(path)["surface_temperature"]
    with open_fields(path) as dataset:
        truth = dataset["surface_temperature"].load()
    land = truth.isnull().all("time")
    assert 0.2 < float(land.mean()) < 0.4
    np.testing.assert_array_equal(predicted.isnull(), np.broadcast_to(land, predicted.shape))
    assert str(predicted["time"].values[0])[:7] == "2006-05"
    # The score does not see the land: by hand, over pixels of the sea.
    table = model.score(path, path, period="2009-10:2010-02")
    months = [f"{time:.7}" for time in truth["time"].values.astype(str)]
    chosen = [i for i, month in enumerate(months) if "2009-11" <= month <= "2010-02"]
    error = truth.isel(time=chosen) - truth.isel(time=[i - 1 for i in chosen]).values
    assert table.value("persistence") == pytest.approx(rmse(error, truth["latitude"]), rel=1e-4)


def series_on(field: xr.DataArray, scale: float) -> xr.Dataset:
    """Several times on the grid of a file that holds one: the field and smooth changes of it."""
    generator = np.random.default_rng(0)
    factors = xr.DataArray(generator.normal(0.0, scale, 24), dims="time", coords={"time": times(24)})
    field = field.drop_vars([name for name in ("time", "time_counter") if name in field.coords])
    with xr.set_options(keep_attrs=True):
        whole = (field * (1.0 + factors)).transpose("time", ...).astype(np.float32)
    return whole.assign_attrs(field.attrs).to_dataset(name=str(field.name))


@pytest.mark.parametrize(
    ("file", "variable", "kind"),
    [("rotated_pole.nc", "air_pressure_at_sea_level", "rotated"), ("orca2_votemper.nc", "votemper", "curvilinear")],
)
def test_grids_with_a_rotated_pole_or_two_dimensional_coordinates(
    tmp_path: Path, file: str, variable: str, kind: str
) -> None:
    with open_fields(FILES / file) as dataset:
        series = series_on(dataset[variable].load(), 0.01)
    if "rotated" in kind:
        series["rotated_latitude_longitude"] = ((), 0, {"grid_mapping_name": "rotated_latitude_longitude"})
    model = smoe.GridRegressor(lead="1D", max_epochs=1, batch_size=8, **SMALL)
    model.fit(series, series)
    assert model.fitted.grid.kind == kind
    predicted = model.predict(series)
    for name in series[variable].coords:
        if name not in ("time", "forecast_reference_time", "forecast_period"):
            np.testing.assert_array_equal(predicted[name], series[name])
    assert predicted[variable].dims == series[variable].dims
    land = series[variable].isnull().all("time")
    np.testing.assert_array_equal(predicted[variable].isnull().all("time"), land)
    assert int(predicted[variable].isnull().sum()) == int(land.sum()) * len(series["time"])
    model.save(tmp_path / "m")
    xr.testing.assert_identical(
        smoe.GridRegressor.load(tmp_path / "m").predict(series).drop_attrs(), predicted.drop_attrs()
    )


def test_a_curvilinear_ocean_is_regridded_to_latitudes_and_longitudes_on_request() -> None:
    with open_fields(FILES / "orca2_votemper.nc") as dataset:
        ocean = series_on(dataset["votemper"].load(), 0.01)
    latitude, longitude = np.arange(-30.0, 31.0, 3.0), np.arange(-40.0, -20.0, 3.0)
    target = xr.Dataset(
        {"sst": (("time", "lat", "lon"), np.random.default_rng(0).normal(size=(24, 21, 7)).astype(np.float32))},
        coords={
            "time": times(24),
            "lat": ("lat", latitude, {"units": "degrees_north"}),
            "lon": ("lon", longitude, {"units": "degrees_east"}),
        },
    )
    model = smoe.GridRegressor(max_epochs=1, batch_size=8, regrid=True, **SMALL)
    with pytest.raises(DataError, match=r"inputs and targets are on different grids, .* curvilinear"):
        smoe.GridRegressor(**SMALL).fit(ocean, target)
    model.fit(ocean, target)
    assert model.predict(ocean)["sst"].shape == (24, 21, 7)
    # The mean of the training at a pixel is that of the pixels around it, by hand.
    place = on_sphere(np.array([0.0]), np.array([-31.0]))
    pixels = on_sphere(ocean["nav_lat"].values, ocean["nav_lon"].values)
    distances = np.linalg.norm(pixels - place, axis=-1).ravel()
    nearest = np.argsort(distances)[:4]
    train = ocean["votemper"].isel(time=slice(0, 19)).mean("time").values.ravel()[nearest]
    expected = np.average(train, weights=distances[nearest] ** -2)
    assert model.fitted.statistics.input_fill[0, 10, 3] == pytest.approx(expected, rel=1e-4)


def test_many_files_with_dates_beside_a_counter() -> None:
    with open_fields(str(FILES / "NEMO" / "nemo_1m_*_grid-T.nc")) as dataset:
        source = FieldSource(dataset)
        assert [channel.name for channel in source.channels] == ["tos"] and source.grid.kind == "curvilinear"
        assert source.labels is not None
        assert [source.labels.text(int(seconds))[:7] for seconds in source.labels.seconds] == [
            "2015-01",
            "2015-02",
            "2015-03",
        ]
        np.testing.assert_array_equal(source.read(np.array([1]))[0, 0], dataset["tos"].values[1])
