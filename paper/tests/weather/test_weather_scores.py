from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scores.continuous
import scores.functions
import xarray as xr

from smoe.cli.main import main
from smoe.errors import DataError
from smoe_paper.experiments.runs import open_run, train
from smoe_paper.experiments.task import OpenRun
from smoe_paper.weather.recipes import WeatherData
from smoe_paper.weather.scores import score_baselines, week_of_year
from smoe_paper.weather.store import WeatherSamples, WeatherStore
from tiny_weather import GRID, SOURCE, make_store, tiny_recipe

TARGETS = ("z_500", "t_850", "tisr")
LEAD = np.timedelta64(72, "h")


def quietly(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> OpenRun:
    folder = tmp_path_factory.mktemp("weather")
    recipe = tiny_recipe("weather/smoe", make_store(folder / "store"))
    # Several batches in the test.
    plan = replace(recipe.training, evaluation_batch_size=8)
    recipe = replace(recipe, data=replace(recipe.data, targets=TARGETS, test_every_hours=6), training=plan)
    train("weather/smoe", recipe, folder / "run", notify=quietly)
    return open_run(folder / "run", splits=("test",), notify=quietly, data={"store": folder / "store"})


@pytest.fixture(autouse=True)
def _beside_the_store(run: OpenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.directory.path.parent)


@pytest.fixture(scope="module")
def store(run: OpenRun) -> WeatherStore:
    return WeatherStore.open(run.directory.path.parent / "store")


def source_fields(name: str, year: int) -> xr.DataArray:
    return xr.DataArray(
        SOURCE.read_year(name, year).astype(np.float64),
        dims=("time", "lat", "lon"),
        coords={"time": SOURCE.times(year), "lat": list(GRID.latitude)},
    )


def test_baselines_have_the_scores_that_other_packages_give(store: WeatherStore) -> None:
    samples = WeatherSamples(store, (2002, 2002), targets=TARGETS)
    init, ours = samples.init_times, score_baselines(samples, (2000, 2000))
    weights: Any = scores.functions.create_latitude_weights(xr.DataArray(list(GRID.latitude), dims="lat"))
    weights = weights.assign_coords(lat=list(GRID.latitude))
    for name in TARGETS:
        train_fields, test_fields = source_fields(name, 2000), source_fields(name, 2002)
        truth = test_fields.sel(time=init + LEAD)
        weekly = train_fields.groupby(xr.DataArray(week_of_year(SOURCE.times(2000)), dims="time", name="week")).mean()
        forecasts = {
            "persistence": test_fields.sel(time=init).assign_coords(time=init + LEAD),
            "climatology": train_fields.mean("time") + 0 * truth,
            "weekly climatology": weekly.sel(week=week_of_year(init + LEAD)).rename(week="time").assign_coords(
                time=init + LEAD
            ),
        }  # fmt: skip
        for kind, forecast in forecasts.items():
            expected: Any = scores.continuous.rmse(forecast, truth, weights=weights)
            assert ours[kind][f"rmse_{name}"] == pytest.approx(float(expected), rel=1e-5), (kind, name)


def test_weeks() -> None:
    days = {"2001-01-01": 0, "2001-01-07T23": 0, "2001-01-08": 1, "2001-12-24": 51, "2001-12-31T18": 51}
    # 51 weeks are 357 days: the last week of a leap year has nine, from 23 December on.
    days |= {"2000-12-22T21": 50, "2000-12-23": 51, "2000-12-31": 51, "2000-02-29": 8, "1999-01-01": 0}
    times = np.array(list(days), dtype="datetime64[h]")
    assert week_of_year(times).tolist() == list(days.values())
    year = np.arange("2001-01-01", "2002-01-01", dtype="datetime64[D]")
    assert np.bincount(week_of_year(year)).tolist() == [7] * 51 + [8]


def test_what_a_climatology_lacks_is_told(store: WeatherStore) -> None:
    with pytest.raises(DataError, match="no times in the years 1979 to 1980; it has 2000-2002"):
        score_baselines(WeatherSamples(store, (2002, 2002), targets=TARGETS), (1979, 1980))
    # The last year has ten days only: most weeks of the one before have no mean.
    scores_of = score_baselines(WeatherSamples(store, (2001, 2001), targets=TARGETS), (2002, 2002))
    assert np.isnan(scores_of["weekly climatology"]["rmse_z_500"]) and scores_of["climatology"]["rmse_z_500"] > 0.0


def test_precipitation_is_no_target() -> None:
    with pytest.raises(ValueError, match="precipitation is an input only"):
        WeatherData(targets=("z_500", "tp"))


def test_the_command_line(run: OpenRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    folder = str(run.directory.path)
    assert main(["evaluate", folder]) == 0
    printed = capsys.readouterr()
    for text in ("rmse_z_500", "weekly", "rmse_tisr", "278 ± 2", "ERA5, 2017-2018", "simulated"):
        assert text in printed.out
