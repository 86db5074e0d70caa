"""The net that predicts is the better one on validation, and every report says which it is."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import smoe
from gridded_files import regional
from smoe.regression._fitted import best_validation
from smoe.regression._scores import PLAIN, SMOE, TREES, ErrorSums, bootstrap_spread, make_table

SMALL: dict[str, Any] = {"device": "cpu", "progress": False, "compare": "yes", "net": "layer", "filters": 2}


def alike_everywhere() -> tuple[xr.Dataset, xr.Dataset]:
    """Targets that a plain net learns: a function of the pixel and its neighbours, the same at all places."""
    x = regional(120, 8, 10, seed=1, name="x")
    size = abs(x["x"] - 280.0)
    y = (size + size.shift(lon=1, fill_value=0.0)).astype(np.float32)
    return x, y.assign_attrs(units="K").to_dataset(name="y")


WORSE = re.compile(r"the SMoE net beside the plain net, whose filters are the same everywhere: \S+ % ± \S+ % more")


@pytest.fixture(scope="module")
def plain_is_better() -> tuple[smoe.GridRegressor, xr.Dataset, xr.Dataset, list[str]]:
    x, y = alike_everywhere()
    lines: list[str] = []
    # One linear filter at each pixel cannot learn an absolute value; two convolutions with ReLU can.
    model = smoe.GridRegressor(max_epochs=12, learning_rate=0.02, num_experts=40.0, **SMALL)
    model.fit(x, y, notify=lines.append)
    return model, x, y, lines


def test_the_plain_net_predicts_where_it_is_better(
    plain_is_better: tuple[smoe.GridRegressor, xr.Dataset, xr.Dataset, list[str]], tmp_path: Path
) -> None:
    model, x, y, lines = plain_is_better
    fitted = model.fitted
    assert fitted.kept == "plain" and model.net is fitted.plain
    table = model.score(x, y)
    assert table.value("model") < table.value(SMOE) and fitted.shares["plain"][0] > fitted.shares["net"][0]
    error = model.predict(x)["y"] - y["y"]
    weights = xr.DataArray(np.cos(np.deg2rad(x["lat"].values)), dims="lat")
    by_hand = float(np.sqrt((error.astype(np.float64) ** 2).weighted(weights).mean(["lat", "lon"]).mean()))
    assert table.value("model") == pytest.approx(by_hand, rel=1e-4)
    assert all(WORSE.search(each) for each in (str(table), str(table.to_plain()["notes"]), "\n".join(lines)))
    assert "plain layer of" in model.predict(x).attrs["history"]
    assert "the plain net predicts" in model.routing_map().attrs["comment"]
    model.save(tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["kept"] == "plain" and WORSE.search(str(config["remarks"]))
    again = smoe.GridRegressor.load(tmp_path / "m")
    assert again.fitted.keeps_plain
    xr.testing.assert_equal(again.predict(x), model.predict(x))


def test_the_smoe_net_is_kept_on_request_and_the_scores_say_that_it_is_worse(
    plain_is_better: tuple[smoe.GridRegressor, xr.Dataset, xr.Dataset, list[str]],
) -> None:
    model, x, y, _ = plain_is_better
    asked = smoe.GridRegressor(max_epochs=12, learning_rate=0.02, num_experts=40.0, keep="smoe", **SMALL)
    asked.fit(x, y)
    assert not asked.fitted.keeps_plain and asked.net is asked.fitted.net
    table = asked.score(x, y)
    other = model.score(x, y)
    assert table.value(PLAIN) == pytest.approx(other.value(PLAIN if PLAIN in other.rmse else "model"), rel=1e-5)
    assert WORSE.search(str(table))


def test_the_better_net_needs_no_note_and_an_unknown_one_has_one() -> None:
    x, y = regional(30, 4, 6, seed=1), regional(30, 4, 6, seed=2)
    model = smoe.GridRegressor(max_epochs=1, **SMALL)
    model.fit(x, y)
    better = {"base": 1.0, "net": 0.8, "plain": 0.9}
    one, none = np.ones(1), np.zeros(1)
    shares = {"net": one, "plain": none, "fold0": none}
    fitted = replace(model.fitted, validation=better, shares=shares, verdict="")
    assert not fitted.remarks()
    assert "no plain net was fitted" in str(replace(fitted, plain=None).remarks())
    assert best_validation([{"validation/loss": float("nan")}, {"validation/loss": None}]) is None


def test_the_spread_is_that_of_the_root_mean_square_over_blocks() -> None:
    generator = np.random.default_rng(0)
    squared = generator.exponential(4.0, (900, 1))
    # The root of a mean of 900 values of mean 4 and standard deviation 4: 4 / sqrt(900) / (2 * sqrt(4)) = 0.0333.
    assert bootstrap_spread(squared)[0] == pytest.approx(0.0333, rel=0.2)
    infinite = ErrorSums()
    infinite.add(np.full((4, 1, 2, 2), np.inf, np.float32), np.zeros((4, 1, 2, 2), np.float32), np.ones((2, 2)))
    assert "errors that are not finite: model" in make_table({"model": infinite}, ("t",), ("K",), None).notes
    # Times that err alike in runs of 30 are 30 independent values, not 900.
    assert bootstrap_spread(np.repeat(squared[:30], 30, axis=0))[0] > 3.0 * bootstrap_spread(squared)[0]


@pytest.mark.parametrize(("objective", "name"), [("mse", "y"), ("quantiles", "y"), ("mse", "x")])
def test_boosted_trees_are_a_row_where_lightgbm_is_installed(
    objective: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightgbm")
    x = regional(120, 8, 10, seed=1, name="x")
    # The eastern neighbour counts in the south, the pixel itself in the north, by its size only.
    size = abs(x["x"] - 280.0)
    y = xr.where(x["lat"] < 44.0, size.shift(lon=-1, fill_value=0.0), size).transpose("time", "lat", "lon")
    # A target of the name of an input continues it.
    y = (y + x["x"] if name == "x" else y).astype(np.float32).assign_attrs(units="K").to_dataset(name=name)
    x["more"] = x["x"][:, ::-1].copy()
    options: dict[str, Any] = {**SMALL, "max_epochs": 1, "objective": objective}
    # From north to south: fields that are read are views.
    x, y = (each.isel(lat=slice(None, None, -1)) for each in (x, y))
    model = smoe.GridRegressor(**options).fit(x, y, test="2001-04-15:")
    table = model.score(x, y)
    assert table.value(TREES) < 0.4 * table.value("ridge regression") and "LightGBM" in str(table)
    if objective == "quantiles":
        assert 0.0 < table.value(TREES, metric="objective") < table.value("ridge regression", metric="objective")
    assert any("better than the model by more than 1 %" in note and "LightGBM" in note for note in table.notes)
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    assert TREES not in smoe.GridRegressor(**options).fit(x, y).score(x, y).rmse
