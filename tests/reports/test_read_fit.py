"""What a report reads of fitted models and their gates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
import torch
from torch import nn

from gridded_files import regional
from sample_reports import GRID, TwoLayers, place_samples
from smoe import GridRegressor
from smoe._maps import Axis, Places
from smoe.diagnostics import fixed_choices
from smoe.nn import HEALPixMoE
from smoe.regression._scores import write_scores
from smoe.reports._page import figures, write_page
from smoe.reports._page_data import DETAILS, curves_of, page_data
from smoe.reports.gate_maps import ranked, read_gates
from smoe.reports.read_fit import FitData, labels_of, read_fit


def silently(_: str) -> None:
    pass


def test_labels_tell_runs_apart() -> None:
    assert labels_of([Path("/a/x"), Path("/b/y")]) == ["x", "y"]
    assert labels_of([Path("/a/x/0"), Path("/b/x/0"), Path("/b/y/0")]) == ["a/x/0", "b/x/0", "b/y/0"]


def test_experts_are_ranked_by_their_scores() -> None:
    indices, weights = torch.tensor([[3, 1], [0, 2]]), torch.tensor([[0.1, 0.5], [0.4, 0.5]])
    choices, scores = ranked(indices, weights)
    # Equal scores keep their order.
    assert choices.tolist() == [[0, 1], [3, 2]]
    np.testing.assert_allclose(scores, [[0.4, 0.5], [0.1, 0.5]])


def test_gates_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TwoLayers(0)
    first, second = read_gates(model, place_samples()["volume"])
    assert (first.layers, first.num_experts, first.num_selected) == (("first",), 4, 2)
    # Places of other pixels are not those of the gate.
    assert first.places == Places("grid", GRID)
    expected = model.first.routing()
    np.testing.assert_array_equal(first.choices.reshape(2, *GRID), expected.indices.numpy())
    np.testing.assert_allclose(first.scores.reshape(2, *GRID), expected.weights.detach().numpy())
    assert first.use.sum() == pytest.approx(2.0)
    assert second.filters is not None and second.filters.experts[0] == int(np.argmax(second.use))
    weight = model.second.weight.detach().numpy().reshape(3, 1, 2, 3, 3)
    np.testing.assert_array_equal(second.filters.pictures[0], weight[second.filters.experts[0], 0])
    assert second.filters.labels[0] == ("in 0", "in 1")


def test_a_gate_on_a_padded_and_halved_grid_is_shown_on_that_of_the_data() -> None:
    # Data of 5 x 7 are padded to 8 x 8 and halved to 4 x 4.
    (gate, _) = read_gates(TwoLayers(0, (4, 4)), Places("grid", GRID), shown_shape=GRID)
    small, _ = read_gates(TwoLayers(0, (4, 4)), None)
    coarse = small.choices.reshape(2, 4, 4)
    for row in range(GRID[0]):
        for column in range(GRID[1]):
            np.testing.assert_array_equal(
                gate.choices.reshape(2, *GRID)[:, row, column], coarse[:, row // 2, column // 2]
            )


@pytest.mark.parametrize("is_placed", [True, False])
def test_a_film_of_a_sphere_has_the_order_of_its_routing(is_placed: bool) -> None:
    model = nn.Sequential(HEALPixMoE(1, 2, nside=2, pixel_order="ring"))
    coordinates = np.random.default_rng(0).random((48, 3))
    places = Places("mesh", (48,), coordinates=coordinates) if is_placed else None
    (gate,) = read_gates(model, places, film={0: fixed_choices(model)})
    np.testing.assert_array_equal(np.sort(gate.film["start"], axis=0), np.sort(gate.choices, axis=0))


def test_coordinates_of_a_coarser_grid_are_the_middles_of_its_pixels() -> None:
    places = Places("grid", (4, 6), Axis("y", np.arange(4.0)), Axis("x", np.arange(0.0, 60.0, 10.0)))
    coarse = places.on_grid((2, 2))
    assert coarse is not None and coarse.rows is not None and coarse.columns is not None
    # Pixels 0 and 1 have their middle at 0.5; 0, 10 and 20 at 10.
    np.testing.assert_allclose(coarse.rows.values, [0.5, 2.5])
    np.testing.assert_allclose(coarse.columns.values, [10.0, 40.0])
    fine = places.on_grid((8, 6))
    assert fine is not None and fine.rows is not None
    np.testing.assert_allclose(fine.rows.values, np.arange(8) / 2 - 0.25)
    assert place_samples()["mesh"].on_grid((3,)) is None
    with pytest.raises(ValueError, match="a mesh needs the coordinates of its 3 nodes, got 2"):
        Places("mesh", (3,), coordinates=np.zeros((2, 3)))


def test_a_fitted_model_has_the_coordinates_of_its_data(tmp_path: Path) -> None:
    x, y = regional(20, 4, 6, seed=1), regional(20, 4, 6, seed=2)
    x.to_netcdf(tmp_path / "x.nc")
    y.to_netcdf(tmp_path / "y.nc")
    model = GridRegressor("layer", filters=2, max_epochs=2, device="cpu", batch_size=4, compare="yes", progress=False)
    model.fit(x, y, validation="2001-01-15:2001-01-20", notify=silently, run_dir=tmp_path / "model")
    model.save(tmp_path / "model")
    data = FitData((str(tmp_path / "x.nc"),), str(tmp_path / "y.nc"))
    report = read_fit(tmp_path / "model", "mine", data, silently)
    assert report.places is not None and report.places.rows is not None and report.places.columns is not None
    assert report.places.rows.values.tolist() == [40.0, 41.0, 42.0, 43.0]
    assert report.places.columns.values.tolist() == [5.0, 6.0, 7.0, 8.0, 9.0, 10.0]
    assert report.places.is_geographic and report.places.goes_up
    error = report.error_maps[0]
    assert (error.units, error.values.shape) == ("K", (4, 6)) and len(error.others) == 2
    part = slice("2001-01-15", "2001-01-20")
    wrong = model.predict(x)["t2m"].sel(time=part) - y["t2m"].sel(time=part)
    np.testing.assert_allclose(error.values, np.sqrt(np.square(wrong).mean("time")).values, rtol=1e-4)
    # A small fit has no month or hour to compare, but the routing of each epoch.
    assert report.breakdowns == () and list(report.gates[0].film) == ["start", "epoch 1", "epoch 2"]
    assert len(report.examples) == 6 and report.reliability == ()
    assert "validation/loss of the plain net" in curves_of(report)["values"]
    # A plain net was fitted: single convolutions need not be.
    assert not report.routing_gains
    # A plain net that was trained for longer has epochs and seconds of its own.
    longer = replace(report, plain_history=[{"epoch": n + 1, "train/loss": 1.0, "seconds": 2.0} for n in range(5)])
    assert figures(longer)["epochs"] == "2; plain net 5" and figures(longer)["training"].endswith("plain net 10 s")
    assert curves_of(longer)["epochs"] == [1, 2, 3, 4, 5]
    assert read_fit(tmp_path / "model", "mine", None, silently).error_maps == ()
    # The best is on top, and what is not finite, which is stored as null, at the end.
    table = model.score(x, y, period="2001-01-15:2001-01-20")
    table = replace(table, notes=("intervals are narrow",))
    write_scores(tmp_path / "model", "validation", replace(table, rmse={**table.rmse, "model": (float("nan"),)}))
    stored = read_fit(tmp_path / "model", "mine", None, silently)
    rows = stored.scores.rows
    assert stored.remarks[0] == "Intervals are narrow."
    assert [row.values.get("RMSE t2m") for row in rows[:-1]] == sorted(
        e[0] for n, e in table.rmse.items() if n != "model"
    )
    assert rows[-1].is_own and "RMSE t2m" not in rows[-1].values
    write_page([read_fit(tmp_path / "model", "mine", None, silently)], tmp_path / "without.html")
    assert write_page([report], tmp_path / "report.html") < 300_000


@pytest.mark.parametrize("objective", ["quantiles", "gaussian"])
def test_errors_by_month_and_how_often_quantiles_are_exceeded(tmp_path: Path, objective: str) -> None:
    x, y = regional(120, 4, 6, seed=1), regional(120, 4, 6, seed=2)
    x.to_netcdf(tmp_path / "x.nc")
    y.to_netcdf(tmp_path / "y.nc")
    model = GridRegressor(
        "layer", filters=2, max_epochs=1, device="cpu", compare="no", objective=objective, progress=False
    )
    part = slice("2001-03-15", "2001-04-30")
    model.fit(x, y, validation=part, notify=silently)
    model.save(tmp_path / "model")
    data = FitData((str(tmp_path / "x.nc"),), str(tmp_path / "y.nc"))
    report = read_fit(tmp_path / "model", "mine", data, silently)
    by_month = model.score(x, y, period=part).by("month")
    (month,) = report.breakdowns
    assert (month.by, month.steps, month.unit) == ("month", (3, 4), " K")
    assert month.values["this run"] == [by_month[number]["model"][0] for number in (3, 4)]
    predicted, truth = model.predict(x).sel(time=part), y["t2m"].sel(time=part)
    (found,) = report.reliability
    assert found.values["if it were reliable"] == found.steps
    if objective == "quantiles":
        below = (truth < predicted["t2m"]).mean(("time", "lat", "lon"))
    else:
        levels = np.asarray(found.steps) / 100
        score = (truth - predicted["t2m"]) / predicted["t2m_spread"]
        below = [(score < NormalDist().inv_cdf(level)).mean() for level in levels]
    np.testing.assert_allclose(found.values["this run"], 100 * np.asarray(below), atol=0.05)
    assert {chart["name"] for chart in page_data([report], DETAILS[0])[0]["runs"][0]["charts"]["parts"]} == {
        "t2m, RMSE by month", "t2m, RMSE by region"
    }  # fmt: skip
