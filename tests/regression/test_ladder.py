"""Simple models: what they compute, that they are chosen and judged on times they have not seen, and what nets add."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import smoe
from gridded_files import cosines, regional
from smoe.cli.main import main
from smoe.errors import DataError, SmoeError
from smoe.meshes._mesh import on_sphere
from smoe.ops._healpix import healpix_coordinates
from smoe.regression._ladder import COMBINATION, DAMPED, MEAN_ERROR, PERSISTENCE, RIDGE, TimeBasis
from smoe.regression._ladder_fit import (
    NormalEquations,
    _best_shares,
    _combine,
    candidate_bases,
    mesh_neighbours,
    ring_neighbours,
)
from smoe.regression._options import RegressorOptions
from smoe.regression._scores import MEAN_OF_ROWS, TREES
from smoe.regression._training import _beyond, _earned_share, _errors_without_shift

MONTHS = (np.datetime64("1990-01") + np.arange(180)).astype("datetime64[ns]") + np.timedelta64(14, "D")
QUIET: dict[str, Any] = {"device": "cpu", "progress": False}
SMALL: dict[str, Any] = QUIET | {"filters": 2, "num_blocks": 1, "max_epochs": 3, "batch_size": 16}


def seasonal(seed: int = 0, persistence: float = 0.7) -> xr.Dataset:
    """15 years of months: two harmonics of the year that differ between pixels, and an anomaly that lasts."""
    generator = np.random.default_rng(seed)
    y = regional(180, 5, 7, standard_name="air_temperature").assign_coords(time=MONTHS)
    phase = 2.0 * np.pi * np.arange(180)[:, None, None] / 12.0
    sizes = generator.normal(4.0, 1.0, (2, 5, 7))
    anomaly = np.zeros((180, 5, 7))
    for month in range(1, 180):
        anomaly[month] = persistence * anomaly[month - 1] + generator.normal(0.0, 1.0, (5, 7))
    y["t2m"][:] = 280.0 + sizes[0] * np.cos(phase) + 0.5 * sizes[1] * np.sin(2.0 * phase) + anomaly
    return y


def test_a_forecast_of_months_is_as_good_as_the_process_allows() -> None:
    y = seasonal()
    model = smoe.GridRegressor(net="ladder", lead="1 month", **QUIET).fit(y, y, validation="2001:2002", test="2003:")
    table = model.score(y, y)
    # The noise of a month has the standard deviation 1; persistence has the season against it.
    assert table.value("model") < 1.08 and table.value("persistence") > 2.0
    assert table.value("damped anomaly") < 1.08
    assert table.value("model", metric="difference_spread") < 0.05
    assert "2 harmonics of the year" in str(table)


def test_the_damped_anomaly_is_least_squares_at_each_pixel_drawn_to_the_slope_of_all() -> None:
    y = seasonal()
    model = smoe.GridRegressor(net="damped", lead="1 month", **QUIET)
    model.fit(y, y, train=":2000", validation="2001:2002")
    ladder = model.fitted.ladder
    values = y["t2m"].values.astype(np.float64).reshape(180, -1)
    columns = ladder.design.anomalies.basis(y["time"].values.astype("datetime64[s]").astype(np.int64))
    num = 131
    time = columns[1 : num + 1]
    fitted = values[:num] - columns[:num] @ np.linalg.lstsq(columns[:num], values[:num])[0]
    # A little of the usual spread of all pixels, as few times tell it.
    spread = np.hypot(fitted.std(axis=0), 6.0 / num * np.sqrt(np.mean(fitted.var(axis=0))))
    np.testing.assert_allclose(ladder.design.anomalies.scale[0], spread, rtol=1e-4)
    anomaly = (values - columns @ np.linalg.lstsq(columns[:num], values[:num])[0]) / spread
    mean, scale = ladder.target_mean[0], ladder.target_scale[0]
    truth = (values[1 : num + 1] - mean) / scale
    inner, outer = (each - time @ np.linalg.lstsq(time, each)[0] for each in (anomaly[:num], truth))
    slope = (inner * outer).sum() / np.square(inner).sum() / 1.001
    penalty = num * 10.0 / (num + 23)
    expected = np.empty((12, values.shape[1]))
    for pixel in range(values.shape[1]):
        design = np.column_stack([time, anomaly[:num, pixel]])
        gram, cross = design.T @ design, design.T @ truth[:, pixel]
        gram[-1, -1] += penalty
        cross[-1] += penalty * slope
        found = np.linalg.solve(gram, cross)
        expected[:, pixel] = np.column_stack([columns[151:163], anomaly[150:162, pixel]]) @ found
    predicted = model.predict(y.isel(time=slice(150, 162)))["t2m"].values.reshape(12, -1)
    np.testing.assert_allclose(predicted, expected * scale + mean, atol=0.005)


def test_pixels_share_what_few_times_tell() -> None:
    generator = np.random.default_rng(5)
    y = regional(40, 8, 9)
    # Showers: a pixel that had none so far has hardly a spread of its own.
    showers = np.where(generator.random((40, 8, 9)) < 0.3, generator.exponential(5.0, (40, 8, 9)), 0.0)
    y["t2m"][:] = showers + generator.random((40, 8, 9))
    days = [str(each)[:10] for each in y["time"].values]
    periods: dict[str, Any] = {"train": f":{days[6]}", "validation": f"{days[7]}:{days[9]}", "test": f"{days[10]}:"}
    table = smoe.GridRegressor(net="ladder", lead="1D", **QUIET).fit(y, y, **periods).score(y, y)
    climatology = next(each for name, each in table.rmse.items() if name.startswith("climatology"))
    assert table.value("model") < 1.05 * climatology[0] and table.value("damped anomaly") < 1.05 * climatology[0]


def test_a_target_continues_the_input_of_its_name_where_others_share_its_standard_name() -> None:
    y = seasonal(2)
    y = y.assign(low=(y["t2m"] - 10.0 + seasonal(3)["t2m"] * 0.1).assign_attrs(y["t2m"].attrs))
    table = smoe.GridRegressor(net="ladder", lead="1 month", **QUIET).fit(y, y, test="2003:").score(y, y)
    for name in ("t2m", "low"):
        before, after = (y[name].sel(time=slice("2003", None))[part] for part in (slice(None, -1), slice(1, None)))
        expected = np.square(after.values - before.values).mean(axis=(1, 2)).mean() ** 0.5
        assert table.value("persistence", name) == pytest.approx(expected, rel=0.02)
    # What GRIB's readers write for variables without a standard name is no name.
    x, y = y[["t2m"]].rename(t2m="tp"), y[["low"]]
    x["tp"].attrs |= {"standard_name": "unknown", "units": "m"}
    y["low"].attrs["standard_name"] = "unknown"
    table = smoe.GridRegressor(net="ladder", lead="1 month", **QUIET).fit(x, y, test="2003:").score(x, y)
    assert "persistence" not in table.rmse


def test_a_trend_that_goes_on_is_passed_on_beside_weather() -> None:
    generator = np.random.default_rng(4)
    years = np.asarray([f"{1900 + n}-07-01" for n in range(110)], "datetime64[ns]")
    y = regional(110, 5, 6, standard_name="air_temperature").assign_coords(time=years)
    # Weather of the whole area is as large as twenty years of the trend, so that one input tells little of the level.
    weather = generator.normal(0.0, 0.6, (110, 1, 1)) + generator.normal(0.0, 0.3, (110, 5, 6))
    y["t2m"][:] = 280.0 + 0.03 * np.arange(110)[:, None, None] + weather
    model = smoe.GridRegressor(net="ladder", lead="1 year", **QUIET)
    table = model.fit(y, y, train=":1950", validation="1951:1959", test="1965:").score(y, y)
    assert model.fitted.ladder.design.anomalies.basis.trend
    # What the level of one year tells at best is beside noise of the same size: persistence has twice its square.
    assert table.value("model") < 0.95 * table.value("persistence")
    climatology = next(each for name, each in table.rmse.items() if name.startswith("climatology"))
    assert table.value("model") < 0.8 * climatology[0]


def test_what_predicts_is_about_as_good_as_any_simple_model_at_times_that_were_not_fitted(tmp_path: Path) -> None:
    y = seasonal(1)
    model = smoe.GridRegressor(net="layer", lead="1 month", **SMALL).fit(y, y, validation="2003:")
    errors = model.fitted.ladder.errors
    assert errors[model.fitted.base][0] <= 1.005 * min(each[0] for each in errors.values())
    table = model.score(y, y, period=model.fitted.period_of("validation"))
    assert table.value("model") <= 1.01 * min(table.rmse[name][0] for name in table.rmse)
    assert model.fitted.weakness is None and "whose filters are the same everywhere: " in model.fitted.verdict
    model.save(tmp_path / "m")
    again = smoe.GridRegressor.load(tmp_path / "m")
    xr.testing.assert_equal(again.predict(y), model.predict(y))
    # Trees are not in files.
    scored, found = ({name: each for name, each in one.score(y, y).rmse.items() if name not in (TREES, MEAN_OF_ROWS)}
                     for one in (model, again))  # fmt: skip
    assert scored == found


def test_shares_of_nets_add_up_to_what_predicts() -> None:
    y = seasonal(1)
    model = smoe.GridRegressor(net="layer", lead="1 month", **SMALL).fit(y, y, validation="2003:")
    fitted = model.fitted
    shares = {name: np.asarray([share]) for name, share in (("net", 0.25), ("plain", 0.0), ("fold1", 0.5))}
    found = []
    for each in ({"net": 1.0}, {"fold1": 1.0}, {}, shares):
        some = {name: np.asarray([each.get(name, 0.0)]).reshape(1) for name in fitted.shares}
        model._fitted = replace(fitted, shares=some)
        found.append(model.predict(y)["t2m"].values)
    net, fold, base, mixed = found
    np.testing.assert_allclose(mixed, 0.25 * base + 0.25 * net + 0.5 * fold, rtol=1e-5)
    model._fitted = replace(fitted, shares=shares)
    assert model.fitted.kept == "fold1" and "layer of" in model.fitted.describe()
    # What nets add fades where the level is beyond all that was seen.
    after, model._fitted = model.predict(y + 25.0), replace(fitted, shares={name: np.zeros(1) for name in shares})
    faded = np.abs(after["t2m"] - model.predict(y + 25.0)["t2m"]).max()
    assert 0.0 < float(faded) < 0.3 * np.abs(mixed - base).max()


def test_a_level_beyond_all_that_was_seen_is_passed_on() -> None:
    y = seasonal(6, persistence=0.3)
    model = smoe.GridRegressor(net="damped", lead="1 month", **QUIET).fit(y, y, test="2003:")
    late = y.sel(time=slice("2003", None))
    before, after = model.predict(late)["t2m"], model.predict(late + 20.0)["t2m"]
    # Nearly all of it, as the means over the area vary little.
    assert float((after - before).min()) > 15.0 and float((after - before).mean()) > 19.0
    fitted = model.fitted
    shown = []
    for each in (late, late + 200.0):
        fields, starts = (
            each["t2m"].values[:, None],
            MONTHS[-len(late["time"]) :].astype("datetime64[s]").astype(np.int64),
        )
        base = fitted.ladder.predict(fields, starts, starts, None, names=["damped anomaly"])["damped anomaly"]
        shown.append(fitted.ladder.net_inputs(fields, base, starts, starts, None))
    # Nets see fields, and a base, of the level that they know; it is the same number of standard deviations everywhere.
    assert float(abs((shown[1] - shown[0]).mean(axis=(0, 2, 3))).max()) < 3.0
    assert float(abs(model.predict(late + 0.01)["t2m"] - before).max()) < 0.02
    # What is no forecast of the input itself follows the regression.
    x = y.rename(t2m="a").assign(a=lambda each: each["a"].assign_attrs(standard_name="other"))
    model = smoe.GridRegressor(net="linear", lead="1 month", **QUIET).fit(x, y, test="2003:")
    moved = [model.predict(x + level)["t2m"] - model.predict(x)["t2m"] for level in (20.0, 10.0)]
    assert float(moved[0].max()) < 10.0
    np.testing.assert_allclose(moved[0], 2.0 * moved[1], atol=1e-2)


def test_a_level_that_two_inputs_have_counts_once() -> None:
    y = seasonal(6, persistence=0.9)
    noise = np.random.default_rng(1).normal(0.0, 0.3, y["t2m"].shape).astype(np.float32)
    x = y.assign(other=y["t2m"].assign_attrs(standard_name="other"))
    x["t2m"] = (x["t2m"] + noise).assign_attrs(y["t2m"].attrs)
    model = smoe.GridRegressor(net="linear", lead="1 month", **QUIET).fit(x, y, test="2003:")
    late = x.sel(time=slice("2003", None))
    after, before = model.predict((late + 20.0).assign_attrs(late.attrs))["t2m"], model.predict(late)["t2m"]
    assert 15.0 < float((after - before).mean()) < 22.0


def test_a_shift_of_all_times_is_no_evidence_for_a_net() -> None:
    generator = np.random.default_rng(0)
    truth, base = generator.normal(size=(2, 30, 1, 4, 5))
    errors = [_errors_without_shift(each[:, :, None], truth, np.ones((4, 5)), RegressorOptions())
              for each in (base, base + 3.0, base - truth)]  # fmt: skip
    np.testing.assert_allclose(errors[1], errors[0], rtol=1e-6)
    assert errors[2].mean() > 1.5 * errors[0].mean()


def test_a_share_is_earned_by_how_sure_a_gain_is() -> None:
    # The mean over its standard error: 1 / (sqrt(2 / 3) / sqrt(4)).
    gains = np.asarray([0.0, 1.0, 1.0, 2.0, np.nan])
    assert _earned_share(gains, 0.1) == pytest.approx(0.1 + 0.25 * 6.0**0.5)
    assert _earned_share(1e6 * gains, 0.1) == pytest.approx(_earned_share(gains, 0.1))
    assert _earned_share(-gains, 0.7) == pytest.approx(0.7 - 0.25 * 6.0**0.5)
    assert _earned_share(np.ones(5), 0.3) == 1.0 and _earned_share(-np.ones(5), 0.3) == 0.0
    # Nothing gained leaves the prior share; one block is no evidence at all.
    assert _earned_share(np.zeros(5), 0.3) == 0.3 and _earned_share(np.ones(1), 0.3) == 0.0


def test_the_combination_is_half_the_best_shares_and_half_what_is_expected() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        errors = generator.normal(size=(3, 40)) * generator.uniform(0.5, 3.0, (3, 1)) + generator.normal(size=40)
        found, products = _best_shares(errors @ errors.T), errors @ errors.T
        steps = np.linspace(0.0, 1.0, 41)
        tried = [np.asarray([one, other, 1.0 - one - other]) for one in steps for other in steps if one + other <= 1.0]
        assert found.min() >= 0.0 and found.sum() == pytest.approx(1.0)
        assert found @ products @ found <= min(each @ products @ each for each in tried) * (1.0 + 1e-6)
    names, counts = [PERSISTENCE, MEAN_ERROR, DAMPED, RIDGE], np.ones((6, 1))

    def weights(*sizes: float) -> dict[str, float]:
        products = np.diag(np.square(sizes))[None, None].repeat(6, axis=0)
        return {name: float(weight[0]) for name, weight in _combine(names, products, counts)[1].items()}

    # Of errors that have nothing in common, the best shares are as one over their squares.
    even = weights(2.0, 2.0, 2.0, 1.0)
    expected = {PERSISTENCE: 1 / 14 + 0.0125, MEAN_ERROR: 1 / 14 + 0.0125, DAMPED: 1 / 14, RIDGE: 2 / 7 + 0.475}
    assert even == pytest.approx(expected, abs=1e-3)
    # A ridge regression that is nearly right is not spoilt by what is expected of others.
    assert weights(100.0, 100.0, 100.0, 1.0) == {}


def test_a_block_is_predicted_by_a_fit_that_has_not_seen_it() -> None:
    generator = np.random.default_rng(0)
    columns, targets = generator.normal(size=(4, 60, 3)), generator.normal(size=(4, 60, 1))
    block = np.arange(60) // 12
    other = targets.copy()
    other[:, block == 2] += 100.0
    chosen, penalty, others = np.arange(3), np.full((3, 1), 0.1), 1.0 - np.eye(5)
    first, second = (
        NormalEquations(columns, each, block).fit(chosen, penalty, np.zeros((1, 3, 1)), others)
        for each in (targets, other)
    )
    np.testing.assert_allclose(first[:, 2], second[:, 2], atol=1e-9)
    assert np.abs(first[:, 1] - second[:, 1]).min() > 0.1
    rest = block != 4
    gram = columns[0, rest].T @ columns[0, rest] + 0.1 * rest.sum() * np.eye(3)
    np.testing.assert_allclose(first[0, 4], np.linalg.solve(gram, columns[0, rest].T @ targets[0, rest]), atol=1e-9)
    # What all pixels share does not know the block either.
    equations = [NormalEquations(columns, each, block) for each in (targets, other)]
    one, two = (each.pooled(chosen, np.zeros(3, bool), others, penalty) for each in equations)
    np.testing.assert_allclose(one[2], two[2], atol=1e-9)
    assert np.abs(one[1] - two[1]).max() > 0.1


def test_harmonics_need_a_year_and_hours() -> None:
    day = 86400
    assert {basis.year for basis in candidate_bases(np.arange(200) * day, "standard")} == {0}
    assert max(basis.year for basis in candidate_bases(np.arange(800) * day, "noleap")) == 4
    assert max(basis.day for basis in candidate_bases(np.arange(800) * day, "noleap")) == 0
    assert max(basis.day for basis in candidate_bases(np.arange(400) * day // 8, "360_day")) == 3
    yearly = candidate_bases(np.arange(60) * 365 * day, "noleap")
    assert {basis.year for basis in yearly} == {0}
    basis = TimeBasis(year=1, calendar="360_day")
    np.testing.assert_allclose(basis(np.asarray([0, 360 * day])), [[1, 1, 0], [1, 1, 0]], atol=1e-9)


def test_neighbours_wrap_where_the_columns_close_the_circle() -> None:
    open_ends, circle = (ring_neighbours((3, 4), (1,), closes_circle=closes)[4] for closes in (False, True))
    assert open_ends.tolist() == [4, -1, 0, 1, -1, 5, -1, 8, 9]
    assert circle.tolist() == [4, 3, 0, 1, 7, 5, 11, 8, 9]


def test_simple_models_are_fitted_again_only_where_a_test_is_kept_out() -> None:
    y = seasonal(2)
    changed = y.copy(deep=True)
    changed["t2m"].loc[{"time": slice("2002-06", "2002-08")}] += 0.1
    for test, differs in ((None, False), ("2003:", True)):
        models = [
            smoe.GridRegressor(net="climatology", **QUIET).fit(
                y, each, train=":2000", validation="2001:2002", test=test, input_variables=["t2m"]
            )
            for each in (changed + 1.0, y + 1.0)
        ]
        one, other = (model.predict(y)["t2m"] for model in models)
        assert bool((abs(one - other) > 1e-3).any()) == differs


def test_a_rung_needs_what_it_is_made_of() -> None:
    y = seasonal()
    with pytest.raises(DataError, match="net='persistence' needs an input that each target continues"):
        smoe.GridRegressor(net="persistence", **QUIET).fit(y.rename(t2m="a"), y.assign(t2m=y["t2m"].assign_attrs(
            standard_name="other")))  # fmt: skip


@pytest.mark.parametrize("objective", ["gaussian", "quantiles"])
def test_intervals_cover_what_they_say(objective: str) -> None:
    y = seasonal(3)
    model = smoe.GridRegressor(net="ladder", lead="1 month", objective=objective, **QUIET)
    model.fit(y, y, validation="2000:2001", test="2002:")
    predicted, truth = model.predict(y), y["t2m"].sel(time=slice("2002-02", None))
    if objective == "gaussian":
        z = (truth - predicted["t2m"]) / predicted["t2m_spread"]
        inside = abs(z) < 1.2816
    else:
        low, high = (predicted["t2m"].sel(quantile=level) for level in (0.1, 0.9))
        inside = (truth > low) & (truth < high)
    covered = float(inside.sel(time=truth["time"]).weighted(cosines(y["lat"])).mean())
    assert 0.75 < covered < 0.85
    table = model.score(y, y)
    assert f"the 80 % interval covers {100 * covered:.0f} % of t2m in this period" in table.notes
    unlike = model.score(y, y + 3.0 * (y - y.mean()))
    assert any(
        note.endswith("errors are unlike those of the fit, do not rely on the intervals") for note in unlike.notes
    )
    values = {name: table.value(name, metric="objective") for name in table.rmse}
    assert values["model"] <= 1.02 * min(values.values()) and len(values) >= 5


def test_an_interval_is_as_wide_as_the_last_block_needs() -> None:
    assert _beyond([2.2, 1.8, 1.0, 1.0]) == pytest.approx(0.65 * 1.5 + 0.35 * 1.0 + 0.25 * 0.6 * 1.25**0.5)
    assert _beyond([0.0, 1.0, 2.0]) > _beyond([2.0, 1.0, 0.0])  # errors that grow


def test_a_combination_is_weighted_by_errors_that_were_not_fitted() -> None:
    y = seasonal(4, persistence=0.4)
    model = smoe.GridRegressor(net="ladder", lead="1 month", **QUIET).fit(y, y)
    ladder = model.fitted.ladder
    if ladder.best == COMBINATION:
        assert np.allclose(sum(ladder.weights.values()), 1.0) and min(w.min() for w in ladder.weights.values()) >= 0.0
        members = {COMBINATION} | set(ladder.weights)
        inputs = y["t2m"].values[100:110, None]
        seconds = y["time"].values.astype("datetime64[s]").astype(np.int64)[100:111]
        found = ladder.predict(inputs, seconds[:-1], seconds[1:], names=sorted(members))
        by_hand = sum(weight[:, None, None] * found[name] for name, weight in ladder.weights.items())
        np.testing.assert_allclose(found[COMBINATION], by_hand, atol=1e-3)


def test_a_series_of_time_alone_is_an_input_of_every_pixel() -> None:
    y = seasonal(5)
    index = np.random.default_rng(9).normal(size=180)
    y["t2m"][:] += (3.0 * index)[:, None, None]
    x = regional(180, 5, 7, name="noise").assign_coords(time=MONTHS).assign(index=("time", index))
    model = smoe.GridRegressor(net="ladder", **QUIET).fit(x, y, test="2003:")
    table = model.score(x, y)
    assert table.value("linear regression") < 0.6 * table.value("climatology (2 harmonics of the year)")
    assert table.value("model") < 1.02 * table.value("linear regression")


def test_options_are_read_set_and_cloned() -> None:
    base = pytest.importorskip("sklearn.base")
    model = smoe.GridRegressor("layer", lead="1 month", lower=0.0, **QUIET)
    again = base.clone(model)
    assert again.get_params() == model.get_params() and again is not model
    assert model.set_params(filters=3).options.filters == 3 and model.options.lead == "1 month"
    with pytest.raises(SmoeError, match="has no option 'fliters'"):
        model.set_params(fliters=3)
    with pytest.raises(SmoeError, match=r"lower must be below upper, got 1\.0 and 0\.0"):
        model.set_params(lower=1.0, upper=0.0)
    assert "not fitted" in model._repr_html_()


def test_predictions_keep_within_bounds() -> None:
    y = seasonal()
    model = smoe.GridRegressor(net="ladder", lead="1 month", lower=279.0, upper=282.0, **QUIET).fit(y, y)
    predicted = model.predict(y)["t2m"]
    assert float(predicted.min()) == 279.0 and float(predicted.max()) == 282.0


@pytest.mark.parametrize("transform", ["log1p", "sqrt", "logit"])
def test_a_transform_learns_other_units_and_predicts_in_those_of_the_data(transform: str, tmp_path: Path) -> None:
    y = seasonal(7)
    size = np.exp(0.3 * (y["t2m"] - 280.0))
    y["t2m"][:] = size / (1.0 + size) if transform == "logit" else size
    model = smoe.GridRegressor(net="damped", lead="1 month", transform=transform, **QUIET).fit(y, y, test="2003:")
    there = {"log1p": np.log1p, "sqrt": np.sqrt, "logit": lambda share: np.log(share / (1.0 - share))}[transform]
    by_hand = smoe.GridRegressor(net="damped", lead="1 month", **QUIET)
    changed = xr.apply_ufunc(there, y.clip(1e-3, 0.999) if transform == "logit" else y, keep_attrs=True)
    expected = by_hand.fit(changed, changed, test="2003:").predict(changed)["t2m"]
    back = {"log1p": np.expm1, "sqrt": lambda x: np.maximum(x, 0.0) ** 2, "logit": lambda x: 1.0 / (1.0 + np.exp(-x))}
    np.testing.assert_allclose(model.predict(y)["t2m"], back[transform](expected), rtol=1e-4)
    truth = y["t2m"].sel(time=slice("2003-02", None)).astype(np.float64)
    error = model.predict(y)["t2m"].sel(time=truth["time"]) - truth
    rmse = float(np.sqrt((error**2).weighted(cosines(y["lat"])).mean(["lat", "lon"]).mean()))
    table = model.score(y, y)
    assert table.value("model") == pytest.approx(rmse, rel=1e-4)
    kept = y["t2m"].shift(time=1).sel(time=truth["time"]) - truth
    rmse = float(np.sqrt((kept**2).weighted(cosines(y["lat"])).mean(["lat", "lon"]).mean()))
    assert table.value("persistence") == pytest.approx(rmse, rel=1e-3)
    model.save(tmp_path / "m")
    xr.testing.assert_equal(smoe.GridRegressor.load(tmp_path / "m").predict(y), model.predict(y))


def test_a_transform_may_be_a_function_and_its_inverse(tmp_path: Path) -> None:
    y = seasonal(7)
    y["t2m"][:] = np.exp(0.3 * (y["t2m"] - 280.0))
    options: dict[str, Any] = {"net": "damped", "lead": "1 month", **QUIET}
    functions = (np.log1p, np.expm1)
    model = smoe.GridRegressor(transform=functions, **options).fit(y, y, test="2003:")
    named = smoe.GridRegressor(transform="log1p", **options).fit(y, y, test="2003:")
    np.testing.assert_allclose(model.predict(y)["t2m"], named.predict(y)["t2m"], rtol=1e-6)
    assert model.score(y, y).value("model") == pytest.approx(named.score(y, y).value("model"))
    assert model.set_params(filters=3).options.transform == "own"
    model.save(tmp_path / "m")
    with pytest.raises(DataError, match=r"give it as load\(path, transform=\(function, inverse\)\)"):
        smoe.load(tmp_path / "m")
    xr.testing.assert_equal(smoe.load(tmp_path / "m", transform=functions).predict(y), model.predict(y))
    with pytest.raises(DataError, match="give it as transform="):
        smoe.GridRegressor(transform="own", **options).fit(y, y)


def test_rain_that_may_be_predicted_below_zero_is_noted() -> None:
    y = seasonal(7)
    y["t2m"][:] = np.maximum(y["t2m"] - 280.0, 0.0)
    note = "t2m is never below 0 and often 0, but predictions may be below: set lower to 0"
    options: dict[str, Any] = {"net": "damped", "lead": "1 month", **QUIET}
    model = smoe.GridRegressor(**options).fit(y, y)
    assert note in model.fitted.notes and float(model.predict(y)["t2m"].min()) < 0.0
    bounded = smoe.GridRegressor(lower=0.0, **options).fit(y, y)
    assert note not in bounded.fitted.notes and float(bounded.predict(y)["t2m"].min()) == 0.0


def test_values_that_a_transform_does_not_take_are_named() -> None:
    y = seasonal()
    y["t2m"][3, 2, 2] = -5.0
    with pytest.raises(DataError, match="t2m is -5, of which there is no log1p: use another transform"):
        smoe.GridRegressor(net="ladder", lead="1 month", transform="log1p", **QUIET).fit(y, y)
    with pytest.raises(SmoeError, match="transform must be log1p, sqrt or logit, got 'cubic'"):
        smoe.GridRegressor(transform="cubic")
    with pytest.raises(SmoeError, match="a transform has no spread in the units of the data"):
        smoe.GridRegressor(transform="sqrt", objective="gaussian")


def test_scores_by_region() -> None:
    y = seasonal().isel(lat=slice(None, None, -1))
    model = smoe.GridRegressor(net="damped", lead="1 month", **QUIET).fit(y, y, test="2003:")
    north, box = float(y["lat"].max()), (float(y["lat"].min()) + 0.5, 90.0, float(y["lon"][2]) - 360.1, 50.0)
    mask = np.zeros((5, 7), bool)
    mask[0, 1:3] = True
    table = model.score(y, y, regions={"box": box, "mask": mask, "all": (-90, 90, -180, 180)})
    regions = table.by("region")
    assert regions["all"]["model"][0] == pytest.approx(table.value("model"))
    squared = (model.predict(y)["t2m"].sel(time=slice("2003-02", "2004-12")) - y["t2m"]).astype(np.float64) ** 2
    weights = cosines(y["lat"])
    inside = squared.where((y["lat"] >= box[0]) & (y["lon"] >= y["lon"][2])).weighted(weights).mean(["lat", "lon"])
    assert regions["box"]["model"][0] == pytest.approx(float(np.sqrt(inside.mean())), rel=1e-4)
    assert float(y["lat"][0]) == north
    by_hand = float(np.sqrt(squared.isel(lat=0, lon=slice(1, 3)).mean()))
    assert regions["mask"]["model"][0] == pytest.approx(by_hand, rel=1e-4)
    with pytest.raises(DataError, match="the region sea has no pixel of the grid"):
        model.score(y, y, regions={"sea": (-60, -50, 0, 10)})
    with pytest.raises(SmoeError, match=r"the region a must be \(south, north, west, east\), or a mask of \(5, 7\)"):
        model.score(y, y, regions={"a": [1, 2]})


def test_neighbours_on_a_mesh_are_the_nearest_nodes() -> None:
    places = np.random.default_rng(0).normal(size=(60, 3))
    found = mesh_neighbours(places, (1, 2))
    order = np.argsort(np.square(places[7] - places).sum(axis=1))
    assert found.shape == (60, 17) and found[7, 0] == 7
    assert found[7, 1:9].tolist() == order[1:9].tolist() and found[7, 9:].tolist() == order[9:25:2].tolist()


def test_a_regression_on_neighbours_of_a_sphere_is_stored(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(120, 48)).astype(np.float32)
    crs = ((), 0, {"grid_mapping_name": "healpix", "healpix_nside": 2, "healpix_order": "nest"})
    times = {"time": MONTHS[:120], "crs": crs}
    x = xr.Dataset({"a": (("time", "cell"), values, {"units": "K", "grid_mapping": "crs"})}, times)
    near = mesh_neighbours(on_sphere(*healpix_coordinates(2, "nested").numpy().T), (1,))
    y = xr.Dataset(
        {"b": (("time", "cell"), values[:, near].mean(axis=2), {"units": "K", "grid_mapping": "crs"})}, times
    )
    model = smoe.GridRegressor(net="ridge", **QUIET).fit(x, y)
    assert model.fitted.ladder.design.columns.rings
    model.save(tmp_path / "m")
    xr.testing.assert_equal(smoe.GridRegressor.load(tmp_path / "m").predict(x), model.predict(x))


def test_a_rollout_is_the_prediction_of_predictions() -> None:
    y = seasonal()
    model = smoe.GridRegressor(net="ladder", lead="1 month", **QUIET).fit(y, y)
    start = y.isel(time=slice(100, 103))
    found = model.rollout(start, 3)
    assert found["t2m"].dims[:2] == ("lead_time", "time") and found.sizes["lead_time"] == 3
    second = model.predict(model.predict(start))
    np.testing.assert_array_equal(found["t2m"][1], second["t2m"])
    np.testing.assert_array_equal(found["valid_time"][1], second["time"])
    np.testing.assert_array_equal(found["time"], start["time"])
    both = y.assign(other=y["t2m"] * 2.0)
    model = smoe.GridRegressor(net="ladder", lead="1 month", **QUIET).fit(both, y)
    with pytest.raises(DataError, match="it does not predict other"):
        model.rollout(both, 2)


@pytest.mark.parametrize("objective", ["mse", "gaussian", "quantiles"])
def test_several_leads_in_one_model_are_those_of_one_model_each(objective: str, tmp_path: Path) -> None:
    y = seasonal(11)
    options: dict[str, Any] = {"net": "damped", "objective": objective, **QUIET}
    model = smoe.GridRegressor(lead=["3 months", "1 month"], **options).fit(y, y, test="2003:")
    found = model.predict(y)
    assert model.options.lead == "1 month, 3 months" and found["t2m"].dims[:2] == ("time", "lead_time")
    np.testing.assert_array_equal(found["time"], y["time"])
    assert found["lead_time"].values.tolist() == [720.0, 2160.0]
    one = smoe.GridRegressor(lead="3 months", **options).fit(y, y, test="2003:")
    expected = one.predict(y)
    np.testing.assert_array_equal(found["valid_time"][:, 1], expected["time"])
    np.testing.assert_allclose(found["t2m"].isel(lead_time=1), expected["t2m"], atol=1e-3)
    if objective == "gaussian":
        np.testing.assert_allclose(found["t2m_spread"].isel(lead_time=1), expected["t2m_spread"], atol=1e-3)
    # The samples of both leads are those of the longer one, whose first lead is two months earlier.
    table, alone = model.score(y, y), one.score(y, y)
    assert table.targets == ("t2m_1_month", "t2m_3_months")
    assert table.value("model", "t2m_3_months") == pytest.approx(alone.value("model"), rel=1e-4)
    assert table.value("model", "t2m_1_month") < 0.95 * alone.value("model")
    truth = y["t2m"].values[np.arange(156, 177) + 1]
    middle = found["t2m"].isel(lead_time=0, time=slice(156, 177))
    middle = middle.sel(quantile=0.5) if objective == "quantiles" else middle
    squared = np.square((middle - truth).astype(np.float64)).weighted(cosines(y["lat"])).mean(["lat", "lon"])
    assert table.value("model", "t2m_1_month") == pytest.approx(float(np.sqrt(squared.mean())), rel=1e-3)
    model.save(tmp_path / "m")
    xr.testing.assert_equal(smoe.GridRegressor.load(tmp_path / "m").predict(y), found)


def test_several_leads_refuse_what_they_cannot_do() -> None:
    y = seasonal()
    model = smoe.GridRegressor(net="climatology", lead="1 month, 2 months", **QUIET).fit(y, y)
    with pytest.raises(DataError, match="it has several leads"):
        model.rollout(y, 2)
    xr.testing.assert_equal(model.predict(y, lazy=True).compute(), model.predict(y))
    with pytest.raises(SmoeError, match="leads are in months or in days and hours, not in both"):
        smoe.GridRegressor(lead=["1 month", "3D"])


def test_every_time_is_scored_by_a_model_that_has_not_seen_it() -> None:
    y = seasonal()
    model = smoe.GridRegressor(net="climatology", lead="1 month", **QUIET)
    table = model.cross_validate(y, y, folds=3)
    # One sample between two blocks belongs to neither.
    assert table.num_samples == 177 and not model.is_fitted
    # The standard deviation of the anomaly: (1 - 0.7 ** 2) ** -0.5.
    assert 1.25 < table.value("model") < 1.65 and "3 blocks of 1990-01" in str(table)
    with pytest.raises(SmoeError, match="folds must be at least 2"):
        model.cross_validate(y, y, folds=1)


def test_scores_by_month() -> None:
    y = seasonal()
    table = smoe.GridRegressor(net="ladder", lead="1 month", **QUIET).fit(y, y, test="2003:").score(y, y)
    months = table.by("month")
    assert set(months) == set(range(1, 13)) and set(table.by("year")) == {2003, 2004}
    counts = np.asarray([1 if month == 1 else 2 for month in months])
    mean = np.sqrt(sum(count * each["model"][0] ** 2 for count, each in zip(counts, months.values(), strict=True)) / 23)
    assert float(mean) == pytest.approx(table.value("model"), rel=1e-6)


def test_an_own_objective_trains_the_net_and_a_warm_start_continues_it() -> None:
    y = seasonal()
    calls = []

    def fourth(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        calls.append(prediction.shape)
        return (prediction - target) ** 4

    options = {**SMALL, "compare": "no", "keep": "smoe", "max_epochs": 1}
    model = smoe.GridRegressor("layer", lead="1 month", objective=fourth, **options).fit(y, y)
    assert calls and calls[0][1:] == (1, 5, 7) and model.get_params()["objective"] is fourth
    before = {name: value.clone() for name, value in model.net.state_dict().items()}
    model.set_params(learning_rate=1e-12).fit(y, y, warm_start=True)
    after = model.net.state_dict()
    assert all(torch.allclose(after[name], value, atol=1e-5) for name, value in before.items() if "weight" in name)
    with pytest.raises(DataError, match="warm_start needs a model"):
        smoe.GridRegressor("layer", lead="1 month", **QUIET).fit(y, y, warm_start=True)


def test_lazy_predictions_are_computed_when_they_are_asked_for() -> None:
    y = seasonal()
    model = smoe.GridRegressor(net="ladder", lead="1 month", **QUIET).fit(y, y)
    expected = model.predict(y)
    lazy = model.predict(y.chunk(time=50), lazy=True)
    assert lazy["t2m"].chunks is not None and lazy.sizes == expected.sizes
    xr.testing.assert_equal(lazy.compute(scheduler="synchronous"), expected)


def test_a_quick_fit_and_its_folds_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seasonal().to_netcdf(tmp_path / "y.nc")
    flags = ["--lead", "1 month", "--quick", "--net", "layer", "--filters", "2", "--device", "cpu", "--folds", "2"]
    assert main(["fit", str(tmp_path / "y.nc"), str(tmp_path / "y.nc"), "-o", str(tmp_path / "run"), *flags]) == 0
    text = capsys.readouterr()
    assert "2 blocks of 1990-01" in text.out and "plain net" not in text.out.split("note: no plain net")[0]
    assert "simple models: 2 harmonics of the year" in text.err


def test_nets_earn_shares_by_the_objective_that_was_asked_for() -> None:
    y = regional(200, 6, 8, seed=3)
    # Nearly always the same, and far above now and then: wide below is as good as wide above for a normal error only.
    y["t2m"][:] = np.maximum(np.exp(np.random.default_rng(0).normal(size=(200, 6, 8))) - 1.5, 0.0)
    options: dict[str, Any] = {**SMALL, "max_epochs": 8, "learning_rate": 0.02, "compare": "yes"}
    model = smoe.GridRegressor(net="layer", lead="1D", objective="quantiles", **options).fit(y, y)
    pinball = (model.score(y, y, model.fitted.period_of("validation")).objective or ("", {}))[1]
    assert model.fitted.kept != "ladder" and pinball["model"][0] < pinball["ridge regression"][0]
