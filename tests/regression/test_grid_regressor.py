from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

import smoe
from gridded_files import cosines, regional, times
from smoe._files import checksum
from smoe.errors import DataError
from smoe.regression._options import RegressorOptions
from smoe.regression._scores import MEAN_OF_NETS, MEAN_OF_ROWS, PLAIN, SMOE, TREES, write_scores

SMALL: dict[str, Any] = {
    "filters": 2,
    "num_blocks": 1,
    "num_experts": 2.0,
    "max_epochs": 2,
    "batch_size": 4,
    "device": "cpu",
    "progress": False,
}


def pair(count: int = 40, rows: int = 6, columns: int = 9) -> tuple[xr.Dataset, xr.Dataset]:
    """Analyses, and forecasts of them whose error depends on the place; one pixel is masked."""
    generator = np.random.default_rng(3)
    y = regional(count, rows, columns, standard_name="air_temperature", long_name="temperature")
    y["t2m"][:, 1, 2] = np.nan
    offset = generator.normal(0.0, 3.0, (rows, columns))
    x = y.copy(deep=True)
    x["t2m"] = x["t2m"] + offset + generator.normal(0.0, 0.1, x["t2m"].shape)
    x["t2m"].attrs = dict(y["t2m"].attrs)
    x["t2m"] = x["t2m"].astype(np.float32)
    return x, y


def fitted(x: Any, y: Any, **options: Any) -> smoe.GridRegressor:
    fit = {key: options.pop(key) for key in ("train", "validation", "test") if key in options}
    return smoe.GridRegressor(**{"compare": "no", **SMALL, **options}).fit(x, y, **fit)


def test_the_lines_of_the_readme(tmp_path: Path) -> None:
    whole = regional(60, 6, 9)
    model = smoe.GridRegressor(lead="3D", **SMALL)
    model.fit(whole, whole, validation=slice("2001-02-10", "2001-02-20"))
    new = regional(5, 6, 9, seed=7).assign_coords(time=times(5, "2003-12-30"))
    predicted = model.predict(new)
    np.testing.assert_array_equal(predicted["time"], times(5, "2004-01-02"))
    table = model.score(whole, whole, period="2001-02-10:2001-02-20")
    rungs = {"persistence", "climatology (mean)", "input + map of mean errors", "damped anomaly", "ridge regression"}
    rows = set(table.rmse) - {TREES}
    assert rungs | {"model"} <= rows <= rungs | {"model", SMOE, PLAIN, MEAN_OF_NETS, MEAN_OF_ROWS}
    assert {MEAN_OF_NETS, MEAN_OF_ROWS} <= rows
    routing = model.routing_map()
    assert routing.dims == ("lat", "lon") and routing.attrs["flag_meanings"].startswith("expert_")
    assert set(np.unique(routing)) == set(routing.attrs["flag_values"])
    model.save(tmp_path / "mine")
    again = smoe.GridRegressor.load(tmp_path / "mine")
    xr.testing.assert_equal(again.predict(new), predicted)
    table, found = model.score(whole, whole), again.score(whole, whole)
    # Trees are not in files.
    assert {name: table.rmse[name] for name in found.rmse if name != MEAN_OF_ROWS} == {
        name: error for name, error in found.rmse.items() if name != MEAN_OF_ROWS
    }
    xr.testing.assert_identical(again.routing_map(), routing)


def test_the_record_of_a_fit_names_no_score_of_a_test() -> None:
    history = fitted(*pair(), validation=slice("2001-01-26", "2001-02-09")).fitted.records["model"]
    assert "validation/loss" in history[0]
    assert not [key for record in history for key in record if key.startswith("test/")]


def test_a_prediction_is_the_base_and_what_the_net_adds() -> None:
    x, y = pair()
    model = fitted(x, y, train=slice("2001-01-01", "2001-01-25"), validation=slice("2001-01-26", "2001-02-09"),
                   net="layer", keep="smoe")  # fmt: skip
    known = model.fitted
    assert known.kept == "net" and known.shares["net"].tolist() == [1.0]
    values = x["t2m"].values[:, None]
    seconds = x["time"].values.astype("datetime64[s]").astype(np.int64)
    base = known.ladder.predict(values, seconds, seconds, None, [known.base])[known.base]
    with torch.no_grad():
        output = model.net(torch.from_numpy(known.ladder.net_inputs(values, base, seconds, seconds, None)))
    expected = (base + float(model.net.scale) * output.numpy())[:, 0]
    predicted = model.predict(x)["t2m"]
    is_there = np.isfinite(y["t2m"].values)
    np.testing.assert_allclose(predicted.values[is_there], expected[is_there], rtol=0, atol=1e-4)
    assert predicted.attrs == y["t2m"].attrs
    assert bool(predicted[:, 1, 2].isnull().all()) and int(predicted.isnull().sum()) == len(predicted)


def test_the_file_may_have_any_order() -> None:
    x, y = pair()
    model = fitted(x, y, net="layer")
    turned = x.isel(lat=slice(None, None, -1), lon=slice(None, None, -1), time=slice(None, None, -1))
    turned = turned.assign_coords(lon=turned["lon"] - 360.0)
    forwards, backwards = model.predict(x)["t2m"], model.predict(turned)["t2m"]
    np.testing.assert_array_equal(backwards["lat"], forwards["lat"])
    np.testing.assert_allclose(backwards.values[::-1], forwards.values, rtol=1e-6)
    # Targets from north to south: predictions have their order.
    model = fitted(x, y.isel(lat=slice(None, None, -1)), net="layer")
    np.testing.assert_allclose(model.predict(x)["t2m"].values[:, ::-1], forwards.values, rtol=1e-6)


def test_scores_are_those_that_xarray_computes() -> None:
    x, y = pair()
    train, test = slice("2001-01-01", "2001-01-25"), slice("2001-02-01", "2001-02-09")
    model = fitted(x, y, train=train, validation=slice("2001-01-26", "2001-01-31"), net="layer")
    table = model.score(x, y, period=test)
    weights = cosines(y["lat"])
    truth = y["t2m"].sel(time=test).astype(np.float64)

    def rmse(prediction: xr.DataArray) -> float:
        error = ((prediction.sel(time=test) - truth) ** 2).weighted(weights)
        return float(np.sqrt(error.mean(["lat", "lon"]).mean()))

    change = (y["t2m"] - x["t2m"]).sel(time=train).mean("time")
    assert table.value("model") == pytest.approx(rmse(model.predict(x)["t2m"]), rel=1e-4)
    assert table.value("raw input") == pytest.approx(rmse(x["t2m"]), rel=1e-4)
    assert table.value("input + map of mean errors") == pytest.approx(rmse(x["t2m"] + change), rel=1e-3)
    mean = y["t2m"].sel(time=train).mean("time") + 0.0 * y["t2m"]
    assert table.value("climatology (mean)") == pytest.approx(rmse(mean), rel=1e-4)
    assert table.num_samples == 9 and table.value("model", "t2m", "rmse_spread") > 0.0


def test_samples_are_counted_with_what_was_left_out(tmp_path: Path) -> None:
    x, y = pair()
    x["t2m"][4, 3, 3] = np.nan
    x["hour"] = ("time", np.arange(40.0))
    periods: dict[str, Any] = {"train": ":2001-01-20", "validation": "2001-01-23:2001-01-31", "test": "2001-02-01:"}
    lines: list[str] = []
    model = smoe.GridRegressor(net="layer", lead="2D", missing="drop", compare="no", **SMALL)
    model.fit(x, y, **periods, notify=lines.append)
    expected = (
        "samples: 17 train, 7 validation, 7 test; left out: 2 without a target 2D later, 6 outside of the periods, "
    )
    assert expected + "1 with missing values" in lines
    assert "variables of inputs of time alone are the same at all pixels: hour" in lines
    model.save(tmp_path / "m")
    again = smoe.GridRegressor.load(tmp_path / "m").fitted
    assert again.samples == model.fitted.samples and sum(again.samples.values()) == 40
    assert again.notes == model.fitted.notes == tuple(lines[:2])


def test_pairs_that_are_lost_and_values_that_are_wrong_are_warned_of() -> None:
    x, y = pair(60)
    first = np.datetime64("2001-01") + np.arange(60)
    x, y = (each.assign_coords(time=first.astype("datetime64[ns]")) for each in (x, y))
    with pytest.warns(UserWarning, match="39 of 60 inputs have no target 30D later, .* give the lead as '1 month'"):
        fitted(x, y, lead="30D", net="layer")
    y["t2m"][7, 4, 4] = 5000.0
    with pytest.warns(UserWarning, match=r"t2m of targets is 5000 at 2001-08-01 at latitude 44, longitude 9, where"):
        model = fitted(x, y, net="layer")
    assert any("is 5000 at" in note for note in model.fitted.notes)


@pytest.mark.parametrize("kind", ["middle", "equal"])
def test_monthly_predictions_have_the_dates_of_the_targets(kind: str, tmp_path: Path) -> None:
    whole = regional(36)
    starts = (np.datetime64("2001-01") + np.arange(37)).astype("datetime64[s]").astype(np.int64)
    # Middles of months, and months of equal length.
    seconds = (starts[:-1] + starts[1:]) // 2 if kind == "middle" else starts[0] + 1_300_000 + 2_629_800 * np.arange(36)
    whole = whole.assign_coords(time=seconds.astype("datetime64[s]").astype("datetime64[ns]"))
    model = fitted(whole, whole, lead="1 month", net="layer")
    model.save(tmp_path / "m")
    predicted = smoe.GridRegressor.load(tmp_path / "m").predict(whole)
    assert (predicted - whole).sizes["time"] == 35
    error = (predicted - whole)["t2m"].sel(time=slice("2003-07", None)).astype(np.float64)
    by_hand = float(np.sqrt((error**2).weighted(cosines(whole["lat"])).mean(["lat", "lon"]).mean()))
    assert model.score(whole, whole, period="2003-06:2003-12").value("model") == pytest.approx(by_hand, rel=1e-4)


@pytest.mark.parametrize("days", [40, 800])
def test_data_of_hours_have_a_climatology_of_the_hours(days: int) -> None:
    hours = (np.datetime64("2001-01-01") + 3 * np.arange(8 * days) * np.timedelta64(1, "h")).astype("datetime64[ns]")
    y = regional(8 * days).assign_coords(time=hours)
    y["t2m"] += (8.0 * np.sin(2.0 * np.pi * y["time"].dt.hour / 24.0)).astype(np.float32)
    train, rest = (slice(None, "2001-01-30"), slice("2001-01-31", None)) if days < 100 else (
        slice(None, "2002-12-31"), slice("2003-01-01", None))  # fmt: skip
    model = fitted(y, y, lead="6h", train=train, validation=rest, net="climatology")
    table = model.score(y, y, period=rest)
    assert "of the day" in str(table)
    # The first two times are no targets.
    learned = y["t2m"].isel(time=slice(2, None)).sel(time=train).astype(np.float64)
    columns = model.fitted.ladder.design.anomalies.basis
    seconds = learned["time"].values.astype("datetime64[s]").astype(np.int64)
    found = np.linalg.lstsq(columns(seconds), learned.values.reshape(len(seconds), -1))[0]
    chosen = y["t2m"].sel(time=rest).isel(time=slice(2, None))
    seconds = chosen["time"].values.astype("datetime64[s]").astype(np.int64)
    error = chosen - (columns(seconds) @ found).reshape(chosen.shape)
    by_hand = float(np.sqrt((error**2).weighted(cosines(y["lat"])).mean(["lat", "lon"]).mean()))
    assert table.value("model") == pytest.approx(by_hand, rel=1e-4)


def test_a_score_without_a_period_is_that_of_the_test_period_or_says_what_it_is() -> None:
    x, y = pair()
    model = fitted(x, y, train=slice(None, "2001-01-25"), validation="2001-01-26:2001-01-31", test="2001-02-01:",
                   net="layer")  # fmt: skip
    table = model.score(x, y)
    assert table.num_samples == 9 and "of the test period, 2001-02-01 to" in str(table)
    assert not any("optimistic" in note for note in table.notes)
    early = {"time": slice(None, "2001-01-20")}
    assert "20 of the 20 times are of the training: these scores are optimistic" in str(model.score(x.sel(early), y))
    model = fitted(x, y, net="layer")
    table = model.score(x, y)
    assert table.num_samples == 40 and "32 of the 40 times are of the training" in str(table)
    assert "8 of the 40 times are of the validation period, which stopped the training:" in str(table)
    assert any("optimistic" in note for note in model.score(x, y, period="2001-01-03").notes)


def test_a_training_that_diverges_is_told(tmp_path: Path) -> None:
    whole = regional(40, 6, 9)
    model = fitted(whole, whole, lead="1D", net="layer", learning_rate=1e3)
    assert model.fitted.kept == "ladder" and model.fitted.weakness is None
    with pytest.warns(UserWarning, match="no better than a simple prediction .* diverged, lower learning_rate"):
        model = fitted(whole, whole, lead="1D", net="layer", learning_rate=1e3, keep="smoe")
    assert any("the training has diverged" in note for note in model.score(whole, whole).notes)
    model.save(tmp_path / "m")
    assert "the training has diverged" in str(smoe.GridRegressor.load(tmp_path / "m").score(whole, whole))


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_targets_of_any_size(size: float, tmp_path: Path) -> None:
    x, y = pair()
    y = (y * size).assign_attrs(y.attrs).rename(t2m="z")
    model = fitted(x, y, net="layer")
    table = model.score(x, y)
    assert 0.0 < table.value("model") / size < 100.0
    spoilt = replace(table, rmse={**table.rmse, "model": (float("inf"),)})
    write_scores(tmp_path, "test", spoilt)
    stored = json.loads((tmp_path / "scores.json").read_text(), parse_constant=pytest.fail)
    assert stored["rmse"]["model"] == [None]
    assert [line[:7] for line in str(spoilt).splitlines() if line[2:7] in ("model", "clima")] == ["  clima", "* model"]


def test_a_static_field_that_changed_is_refused() -> None:
    x, y = pair()
    x["height"] = x["t2m"].isel(time=0, drop=True).fillna(0.0)
    model = fitted(x, y, net="layer")
    xr.testing.assert_equal(model.predict(x), model.predict(x.drop_vars("height")))
    with pytest.raises(DataError, match="height of the inputs is not the field that the model was fitted with"):
        model.predict(x.assign(height=x["height"] + 5.0))


def test_it_learns_an_error_that_depends_on_the_place() -> None:
    x, y = pair(60)
    model = fitted(x, y, net="layer", max_epochs=60, learning_rate=0.03)
    table = model.score(x, y, period=model.fitted.period_of("validation"))
    assert table.value("model") < 0.5 * table.value("raw input")


@pytest.mark.parametrize("net", ["layer", "resnet", "unet"])
def test_every_net_on_a_grid_of_odd_size_that_closes_the_circle(net: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(20, 7, 10)).astype(np.float32)
    coords = {"time": times(20), "lat": np.linspace(-60.0, 60.0, 7), "lon": np.arange(0.0, 360.0, 36.0)}
    x = xr.Dataset({"a": (("time", "lat", "lon"), values), "b": (("time", "lat", "lon"), values**2)}, coords=coords)
    model = fitted(x, x[["b"]], net=net, lead="1D", filters=2)
    assert model.fitted.shape.padding_mode == "longitude"
    assert model.predict(x)["b"].shape == (20, 7, 10)
    assert model.routing_map().shape == (7, 10)
    model.save(tmp_path / "m")
    xr.testing.assert_equal(smoe.GridRegressor.load(tmp_path / "m").predict(x), model.predict(x))


def test_a_net_of_your_own(tmp_path: Path) -> None:
    x, y = pair()

    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 1, 1))

    model = smoe.GridRegressor(make(), **{**SMALL, "compare": "no"}).fit(x, y)
    model.save(tmp_path / "m")
    with pytest.raises(DataError, match=r"give it as load\(path, net=...\)"):
        smoe.GridRegressor.load(tmp_path / "m")
    xr.testing.assert_equal(smoe.GridRegressor.load(tmp_path / "m", net=make()).predict(x), model.predict(x))
    loaded = smoe.load(tmp_path / "m", net=make())
    assert isinstance(loaded, smoe.GridRegressor)
    xr.testing.assert_equal(loaded.predict(x), model.predict(x))
    (tmp_path / "recipe.json").touch()
    with pytest.raises(DataError, match=r"is a run of an experiment of the paper: smoe_paper\.load opens it"):
        smoe.load(tmp_path)
    with pytest.raises(ValueError, match=r"the net must turn \(1, 1, 6, 9\) into \(1, 1, 6, 9\), got \(1, 2, 6, 9\)"):
        smoe.GridRegressor(nn.Conv2d(1, 2, 3, padding=1), **SMALL).fit(x, y)


def test_quantiles_and_spread() -> None:
    x, y = pair()
    model = fitted(x, y, net="layer", objective="quantiles", quantiles=(0.1, 0.5, 0.8))
    predicted = model.predict(x)["t2m"]
    assert predicted.dims == ("time", "quantile", "lat", "lon")
    assert bool((predicted.diff("quantile").fillna(0.0) >= 0.0).all())
    table = model.score(x, y)
    levels = xr.DataArray([0.1, 0.5, 0.8], dims="quantile", coords={"quantile": predicted["quantile"]})
    below = y["t2m"] - predicted
    pinball = np.maximum(levels * below, (levels - 1.0) * below).mean("quantile")
    expected = float(pinball.weighted(cosines(y["lat"])).mean())
    assert table.objective is not None and table.objective[0] == "pinball"
    assert table.objective[1]["model"][0] == pytest.approx(expected, rel=1e-4)
    model = fitted(x, y, net="layer", objective="gaussian")
    predicted = model.predict(x)
    assert set(predicted.data_vars) == {"t2m", "t2m_spread"} and predicted["t2m_spread"].attrs["units"] == "K"
    assert float(predicted["t2m_spread"].min()) > 0.0
    assert "CRPS" in str(model.score(x, y))


def test_levels_static_fields_and_several_targets() -> None:
    generator = np.random.default_rng(5)
    y = regional(30, 6, 9)
    y["t"] = (("time", "level", "lat", "lon"), generator.normal(size=(30, 2, 6, 9)).astype(np.float32), {"units": "K"})
    y = y.assign_coords(level=("level", [850.0, 500.0], {"units": "hPa", "positive": "down"}))
    height = xr.DataArray(generator.normal(size=(6, 9)).astype(np.float32), dims=("lat", "lon"), name="height")
    height = height.assign_coords(lat=y["lat"], lon=y["lon"])
    model = fitted([y, height], y, lead="1D", net="layer")
    assert [channel.name for channel in model.fitted.input_channels] == ["t2m", "t_850", "t_500", "height"]
    predicted = model.predict(y)
    assert predicted["t"].dims == ("time", "level", "lat", "lon") and predicted["t"].attrs["units"] == "K"
    assert predicted["level"].attrs == {"units": "hPa", "positive": "down"}
    # The static field is kept with the model.
    xr.testing.assert_equal(model.predict([y, height]), predicted)


def test_forecasts_are_aligned_by_valid_time() -> None:
    y = regional(40, 6, 9)
    leads = np.array([24, 48])
    starts = y["time"].values[:-2]
    values = np.stack([y["t2m"].values[lead // 24 :][: len(starts)] for lead in leads], axis=1) + 1.0
    coords = {
        "init_time": starts,
        "lead_time": ("lead_time", leads, {"units": "hours"}),
        "lat": y["lat"],
        "lon": y["lon"],
    }
    x = xr.Dataset({"t2m": (("init_time", "lead_time", "lat", "lon"), values, {"units": "K"})}, coords=coords)
    model = fitted(x, y, net="layer")
    # The forecast is the truth plus one: whoever is aligned finds that at once.
    assert float(np.abs(model.fitted.statistics.mean_error + 1.0).max()) < 1e-4
    # The forecast, the base and the lead.
    assert model.fitted.shape.in_channels == 3
    predicted = model.predict(x)["t2m"]
    assert predicted.dims == ("init_time", "lead_time", "lat", "lon")
    np.testing.assert_array_equal(predicted["valid_time"][:, 1], y["time"].values[2:])
    only = fitted(x, y, net="layer", lead="48h")
    assert only.fitted.shape.in_channels == 2
    with pytest.raises(DataError, match="the forecasts have no lead time 3D, but 24h, 48h"):
        fitted(x, y, lead="3D")
    with pytest.raises(DataError, match="were inputs and targets swapped"):
        fitted(y, x)


def test_gaps_are_dropped_or_filled_on_request() -> None:
    x, y = pair()
    x["t2m"][4, 3, 3] = np.nan
    y["t2m"][8, 0, 0] = np.nan
    with pytest.raises(DataError, match=r"t2m of targets has 1 missing values at 2001-01-09"):
        fitted(x, y)
    with pytest.raises(DataError, match=r"t2m of inputs has 1 missing values at 2001-01-05"):
        fitted(x, pair()[1])
    dropping = fitted(x, y, missing="drop", net="layer")
    assert len(dropping.predict(x.isel(time=slice(10, 20)))["time"]) == 10
    assert dropping.score(x, y).num_samples == 38
    model = fitted(x, y, missing="fill", net="layer")
    predicted = model.predict(x)
    assert int(predicted["t2m"].isnull().sum()) == len(x["time"])
    assert predicted.attrs["smoe_missing_inputs"].startswith("replaced by the mean")
    with pytest.raises(DataError, match="t2m has 1 missing values at 2001-01-05 where the training had values"):
        fitted(x.isel(time=slice(10, None)), y.isel(time=slice(10, None)), net="layer").predict(x)


def test_values_in_other_units_are_noticed_without_an_attribute() -> None:
    x, y = pair()
    del x["t2m"].attrs["units"], y["t2m"].attrs["units"]
    model = fitted(x, y, net="layer")
    with pytest.warns(UserWarning, match="t2m is on average .* standard deviations from its mean"):
        model.predict(x - 273.15)


def test_pixels_where_an_input_never_has_a_value_start_at_the_mean_of_the_target() -> None:
    x, y = pair()
    x["t2m"][:, 3:5] = np.nan
    model = fitted(x, y, net="layer")
    statistics = model.fitted.statistics
    training = y["t2m"].isel(time=slice(0, 32))
    np.testing.assert_allclose(statistics.input_fill[0, 3:5], training[:, 3:5].mean("time"), rtol=1e-6)
    np.testing.assert_allclose(statistics.mean_error[0, 3:5], 0.0, atol=1e-3)
    assert np.isfinite(model.predict(x)["t2m"].values[:, 3:5]).all()
    table = model.score(x, y)
    assert all(np.isfinite(values).all() for values in table.rmse.values())
    assert table.value("input + map of mean errors") < table.value("climatology (mean)")


def test_a_target_that_is_one_level_of_an_input_continues_it() -> None:
    levels = xr.concat([regional(30, seed=number) for number in range(3)], "level")
    x = levels.assign_coords(level=("level", [500.0, 850.0, 1000.0], {"units": "hPa"}))
    model = fitted(x, x["t2m"].sel(level=850.0), lead="1D", net="layer")
    assert model.fitted.statistics.reference.tolist() == [1]
    assert "persistence" in model.score(x, x["t2m"].sel(level=850.0)).rmse
    predicted = model.predict(x)
    assert predicted.dims == ("time", "lat", "lon") and float(predicted["level"]) == 850.0


@pytest.mark.parametrize("lead", [np.timedelta64(2, "D"), timedelta(days=2), "2D"])
def test_leads_of_any_type_are_kept_as_text(lead: Any, tmp_path: Path) -> None:
    whole = regional(20)
    model = fitted(whole, whole, lead=lead, net="layer")
    model.save(tmp_path / "m")
    assert smoe.GridRegressor.load(tmp_path / "m").options.lead == "2D"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fliters": 3}, "GridRegressor has no option 'fliters'; did you mean 'filters'"),
        ({"net": nn.Conv2d}, r"got the class Conv2d: give Conv2d\(...\)"),
        ({"filters": "3"}, "filters must be a whole number of at least 1, got '3'"),
        ({"lead": 3}, "lead must be a time such as '6h'"),
    ],
)
def test_mistakes_at_construction(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError, DataError), match=message):
        smoe.GridRegressor(**arguments)


def test_an_own_net_is_named_and_must_take_the_inputs() -> None:
    x, y = pair()
    with pytest.raises(ValueError, match=r"the net does not take \(1, 1, 6, 9\), a sample of these inputs: Given"):
        smoe.GridRegressor(nn.Conv2d(3, 1, 3, padding=1), progress=False).fit(x, y)
    model = smoe.GridRegressor(nn.Conv2d(1, 1, 1), **{**SMALL, "max_epochs": 1}, compare="yes").fit(x, y)
    shares = {"net": np.zeros(1), "plain": np.ones(1), "fold0": np.zeros(1)}
    model._fitted = replace(model.fitted, shares=shares)
    table = model.score(x, y)
    assert "own net" in table.rmse and PLAIN not in table.rmse


def test_regridding_on_request() -> None:
    y = pair()[1]
    fine = y.interp(lat=np.arange(40.0, 45.01, 0.5), lon=np.arange(5.0, 13.01, 0.5)).fillna(280.0)
    fine["t2m"] = fine["t2m"].astype(np.float32).assign_attrs(units="K")
    with pytest.raises(DataError, match=r"inputs and targets are on different grids, 11 x 17 .* against 6 x 9"):
        fitted(fine, y)
    model = fitted(fine, y, regrid=True, net="layer")
    assert model.predict(fine)["t2m"].shape == (40, 6, 9)


def test_no_validation_or_test_time_enters_the_statistics() -> None:
    x, y = pair()
    period = {"train": "2001-01-01:2001-01-20", "validation": "2001-01-21:2001-01-31", "test": "2001-02-01:2001-02-09"}
    model = fitted(x, y, net="layer", **period)
    spoilt_x, spoilt_y = x.copy(deep=True), y.copy(deep=True)
    for spoilt in (spoilt_x, spoilt_y):
        spoilt["t2m"][20:] += 1000.0
    other = fitted(spoilt_x, spoilt_y, net="layer", **period)
    for name in vars(model.fitted.statistics):
        np.testing.assert_array_equal(
            getattr(model.fitted.statistics, name), getattr(other.fitted.statistics, name), err_msg=name
        )


def test_larger_than_memory_gives_the_same_model(tmp_path: Path) -> None:
    x, y = pair()
    x.chunk(time=5).to_zarr(tmp_path / "x.zarr", consolidated=False)
    whole = fitted(x, y, net="layer")
    lines: list[str] = []
    model = smoe.GridRegressor(net="layer", **{**SMALL, "compare": "no"}, max_memory_gb=1e-5)
    model.fit(tmp_path / "x.zarr", y, run_dir=tmp_path / "run", notify=lines.append)
    assert any("streamed into" in line for line in lines)
    assert (tmp_path / "run" / "fields" / "inputs" / "fields.f32").exists()
    assert list((tmp_path / "run" / "fields" / "targets").glob("* train.f32"))
    xr.testing.assert_allclose(model.predict(x), whole.predict(x))
    lazy = model.predict(x, lazy=True)
    assert len(lazy["t2m"].chunks[0]) > 1
    xr.testing.assert_equal(lazy.compute(), model.predict(x))


def test_a_model_does_not_choose_for_the_machine_that_loads_it(tmp_path: Path) -> None:
    machine = {"device": "cpu", "num_threads": 1, "num_workers": 1, "log_with": "tensorboard", "max_memory_gb": 0.5}
    model = fitted(*pair(), net="layer")
    model._fitted = replace(model.fitted, options=replace(model.options, **machine))
    model.save(tmp_path)
    assert not set(machine) & set(json.loads((tmp_path / "config.json").read_text())["options"])
    loaded, default = smoe.GridRegressor.load(tmp_path).options, RegressorOptions()
    assert all(getattr(loaded, name) == getattr(default, name) for name in machine)


def test_files_of_a_stranger(tmp_path: Path) -> None:
    x, y = pair()
    model = fitted(x, y, net="layer")
    with pytest.raises(DataError, match="not fitted yet"):
        smoe.GridRegressor().predict(x)
    model.save(tmp_path / "m")
    with pytest.raises(DataError, match="holds a model already"):
        model.save(tmp_path / "m")
    model.save(tmp_path / "m", overwrite=True)
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps({**config, "lead_scale": 2.0}))
    with pytest.raises(DataError, match="was edited or damaged: its checksum does not fit"):
        smoe.GridRegressor.load(tmp_path / "m")

    def write(changed: dict[str, Any]) -> None:
        changed.pop("checksum", None)
        # A stranger can compute it too.
        (tmp_path / "m" / "config.json").write_text(json.dumps({**changed, "checksum": checksum(changed)}))

    assert config["input_channels"][0]["units"] == "K" and config["grid"]["shape"] == [6, 9]
    for change, message in (
        ({"format": "other"}, "is not a model's config"),
        ({"version": 99}, "version 99"),
        ({"input_channels": None}, "is not a model's config: input_channels must not be null"),
        ({"bounds": 3}, "is not a model's config: bounds must be .*, got 3"),
        ({"layout": {}}, "config: layout lacks the field 'variables'"),
        # Refused before memory is taken for such a net.
        ({"options": {**config["options"], "filters": 50_000}}, "do not fit its config: it describes 50000 filters"),
        ({"shape": {**config["shape"], "grid": [90_000, 90_000]}}, "do not fit its config: its net is NetShape"),
        ({"options": {**config["options"], "filters": 3}}, "do not fit its config"),
        ({"options": {**config["options"], "log_with": "wandb"}}, "sets log_with, which a model may not choose"),
        ({"options": {**config["options"], "scheduler": "tcp://x:1"}}, "options has no field 'scheduler'"),
        ({"grid": {**config["grid"], "rows": {"@array": "none"}}}, "is not a model's config: KeyError 'none'"),
        ({"more": 1}, "is not a model's config: Learned has no field 'more'"),
    ):
        write({**config, **change})
        with pytest.raises(DataError, match=message):
            smoe.GridRegressor.load(tmp_path / "m")
    write(config)
    weights = tmp_path / "m" / "model.safetensors"
    whole = weights.read_bytes()
    for damaged in (whole[:-100], whole[:-1] + bytes([whole[-1] ^ 1])):
        weights.write_bytes(damaged)
        with pytest.raises(DataError, match=r"model\.safetensors is damaged, or of another model: its checksum"):
            smoe.GridRegressor.load(tmp_path / "m")
    weights.write_bytes(whole[:-100])
    write({**config, "weights_sha256": hashlib.sha256(whole[:-100]).hexdigest()})
    with pytest.raises(DataError, match="is damaged"):
        smoe.GridRegressor.load(tmp_path / "m")
    with pytest.raises(DataError, match=r"it has no config\.json"):
        smoe.GridRegressor.load(tmp_path / "nothing")


def test_the_net_of_a_regressor_is_frozen_and_exported() -> None:
    model = smoe.GridRegressor(max_epochs=1, keep="smoe", device="cpu", progress=False, filters=4)
    model.fit(regional(30, 4, 6, seed=1), regional(30, 4, 6, seed=2))
    frozen = smoe.freeze(model.net)
    layers = [module for module in frozen.modules() if isinstance(module, smoe.nn.RoutedLayer)]
    assert layers and all(isinstance(layer.gate, smoe.DecidedGate) for layer in layers)
    example = torch.randn(3, model.fitted.shape.in_channels, *model.fitted.shape.grid)
    assert torch.equal(frozen(example), model.net(example))
    program = torch.export.export(frozen, (example,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    for num_samples in (1, 5):
        samples = torch.randn(num_samples, *example.shape[1:])
        torch.testing.assert_close(program.module()(samples), frozen(samples), rtol=1e-4, atol=1e-5)
