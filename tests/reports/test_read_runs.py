"""What a report reads of runs: errors against loops, baselines, hashes, fitted models, and damaged runs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gridded_files import regional
from image_files import publish, write_idx_set
from sample_reports import GRID, TwoLayers, place_samples, sample_report
from smoe import GridRegressor
from smoe._maps import Axis, Places
from smoe.regression._scores import write_scores
from smoe.reports.gate_maps import ranked, read_gates
from smoe.reports.page import figures, write_page
from smoe.reports.page_data import curves_of
from smoe.reports.read_fit import FitData, labels_of, read_and_compare, read_fit, with_plain
from smoe.reports.run_report import RunReport
from smoe.training.run_directory import CheckpointError, RunError
from smoe_paper.experiments.read_run import ReadOptions, measure_errors, read_run, read_split
from smoe_paper.experiments.recipe import Recipe
from smoe_paper.experiments.runs import open_run, train
from smoe_paper.heat.recipes import HEAT_TRAINING, ConvNetModel, HeatDiffusion, HeatRecipe
from smoe_paper.heat_mesh.recipes import MESH_RECIPES, MeshRecipe
from smoe_paper.images.recipes import IMAGE_TRAINING, ImageData, ImageRecipe, SpatialMoEClassifierModel

DATA = HeatDiffusion(spatial_shape=(9, 7), num_steps=10, num_train_runs=8, num_validation_runs=2, num_test_runs=2)
PLAN = replace(HEAT_TRAINING, max_epochs=2, stop_at=None, device="cpu", evaluation_batch_size=7)


def silently(_: str) -> None:
    pass


def read_runs(paths: list[Path], options: ReadOptions, *, plain: Path | None = None, **more: Any) -> list[RunReport]:
    return read_and_compare(paths, partial(read_run, options=options, **more), plain)


def make_run(name: str, recipe: Recipe, folder: Path) -> Path:
    train(name, recipe, folder, notify=silently)
    return folder


@pytest.fixture(scope="module")
def heat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run("heat/smoe", HeatRecipe(data=DATA, training=PLAN), tmp_path_factory.mktemp("heat") / "smoe")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = HeatRecipe(data=replace(DATA, num_train_runs=4), model=ConvNetModel(), training=PLAN)
    return make_run("heat/conv", recipe, tmp_path_factory.mktemp("heat") / "conv")


def test_errors_are_those_of_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    prediction, truth = torch.randn(2, 5, 2, 3, 4, generator=generator)
    truth[1, 0, 2, 3] = float("nan")
    truth[:, 1, 0, 0] = float("nan")
    batches = [(prediction[:3], truth[:3]), (prediction[3:], truth[3:])]
    maps = measure_errors(batches, Places("grid", (3, 4)), (("z", "m"), ("t", "K")))
    assert [(one.name, one.units) for one in maps] == [("z, RMSE", "m"), ("t, RMSE", "K")]
    for channel, found in enumerate(maps):
        for row in range(3):
            for column in range(4):
                errors = [
                    float(prediction[n, channel, row, column] - truth[n, channel, row, column]) ** 2
                    for n in range(5)
                    if not truth[n, channel, row, column].isnan()
                ]
                expected = np.sqrt(np.mean(errors)) if errors else np.nan
                np.testing.assert_allclose(found.values[4 * row + column], expected, rtol=1e-6)
    # Classes are no fields, and neither are fields on another grid.
    assert measure_errors([(torch.randn(4, 10), torch.zeros(4, dtype=torch.int64))], None, ()) == ()
    assert measure_errors(batches, Places("grid", (5, 4)), ()) == ()


def test_a_run_beside_the_plain_net(heat: Path, plain: Path) -> None:
    reports = read_runs([heat, plain], ReadOptions(), notify=silently)
    smoe, conv = reports
    assert (smoe.is_plain, conv.is_plain, conv.gates) == (False, True, ())
    last = json.loads((heat / "metrics.jsonl").read_text().splitlines()[-1])
    own, unchanged, *published = smoe.scores.rows
    assert own.values == {key.removeprefix("test/"): last[key] for key in last if key.startswith("test/")}
    # The paper's row of the recipe comes first.
    assert published[0].name == "heat/smoe (this recipe)" and published[0].values == {"within_1_percent": 100.0}
    assert {"heat/conv", "heat/lcn"} <= {row.name for row in published}
    # The error of the prediction that nothing changes, by a loop over the samples.
    samples = open_run(heat, splits=("test",), notify=silently).task.splits["test"]
    pairs = [samples[number] for number in range(len(samples))]  # type: ignore[arg-type]
    mse = np.mean([float((target - input).square().mean()) for input, target in pairs])
    assert unchanged.name == "input unchanged" and unchanged.values["mse"] == pytest.approx(mse, rel=1e-5)
    error = smoe.error_maps[0]
    assert error.plain is conv.error_maps[0].values and error.plain_name == "conv"
    # The mean over the pixels is the metric of the whole split.
    assert np.mean(np.square(error.values)) == pytest.approx(last["test/mse"], rel=1e-4)
    assert smoe.regions is not None and smoe.regions.shape == (63,)
    assert set(smoe.filters) == {"diffusivity 0.0025", "diffusivity 0.025", "diffusivity 0.25"}
    assert conv.error_maps[0].plain is None
    assert any("information about the known regions" in remark for remark in smoe.remarks)


def test_the_plain_net_can_be_named(heat: Path, plain: Path) -> None:
    (report,) = read_runs([heat], ReadOptions(), plain=plain, notify=silently)
    assert report.error_maps[0].plain_name == "conv"
    with pytest.raises(ValueError, match="cannot be compared with those of"):
        read_runs([heat], ReadOptions(split=None), plain=plain, notify=silently)
    other = sample_report("other", identity="other data", is_plain=True)
    assert with_plain(report, [other]) is report


def test_the_hash_of_a_split_does_not_depend_on_batches(heat: Path) -> None:
    run = open_run(heat, splits=("test",), notify=silently)
    larger = replace(run, recipe=replace(run.recipe, training=replace(PLAN, evaluation_batch_size=100)))
    first, second = read_split(run, "test"), read_split(larger, "test")
    assert first[1] == second[1] and len(first[1]) == 64
    data = replace(DATA, test_seed=5)
    changed = open_run(heat, splits=("test",), notify=silently, data={"test_seed": 5})
    assert changed.recipe.data == data
    assert read_split(changed, "test")[1] != first[1]


def test_a_report_without_data_reads_no_sample(heat: Path, tmp_path: Path) -> None:
    messages: list[str] = []
    (report,) = read_runs([heat], ReadOptions(split=None), notify=messages.append)
    assert messages == []
    assert report.error_maps == () and len(report.gates) == 1
    assert [row.source for row in report.scores.rows][:2] == ["this run", "published, Figure 3, left"]
    assert write_page([report], tmp_path / "report.html") < 200_000


def test_another_split_is_scored_anew(heat: Path) -> None:
    (report,) = read_runs([heat], ReadOptions(split="validation"), notify=silently)
    assert report.scores.split == "validation"
    expected = open_run(heat, splits=("validation",), notify=silently).evaluate("validation")
    assert report.scores.rows[0].values == pytest.approx(expected)
    assert not any(row.is_published for row in report.scores.rows)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("recipe.json", "recipe.json is damaged"),
        ("metrics.jsonl", "metrics.jsonl is damaged in line 1"),
        ("environment.json", "environment.json is damaged"),
        ("checkpoints/best.safetensors", "best.safetensors"),
    ],
)
def test_a_damaged_run_is_refused(heat: Path, tmp_path: Path, damage: str, message: str) -> None:
    copy = tmp_path / "run"
    shutil.copytree(heat, copy)
    (copy / damage).write_bytes((copy / damage).read_bytes()[: -(len((copy / damage).read_bytes()) // 2)][:40])
    with pytest.raises((RunError, CheckpointError), match=message):
        read_runs([copy], ReadOptions(split=None), notify=silently)


def test_missing_and_repeated_runs_are_refused(heat: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no-run is not a directory: give the directory of a run"):
        read_runs([tmp_path / "no-run"], ReadOptions(), notify=silently)
    with pytest.raises(RunError, match="is not a run directory: it has no recipe"):
        read_runs([tmp_path], ReadOptions(), notify=silently)
    with pytest.raises(RunError, match="is given twice: give each run once"):
        read_runs([heat, heat.parent / "." / heat.name], ReadOptions(), notify=silently)


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
    model.fit(x, y, validation="2001-01-15:2001-01-20", notify=silently)
    model.save(tmp_path / "model")
    data = FitData((str(tmp_path / "x.nc"),), str(tmp_path / "y.nc"))
    report = read_fit(tmp_path / "model", "mine", data, silently)
    assert report.places is not None and report.places.rows is not None and report.places.columns is not None
    assert report.places.rows.values.tolist() == [40.0, 41.0, 42.0, 43.0]
    assert report.places.columns.values.tolist() == [5.0, 6.0, 7.0, 8.0, 9.0, 10.0]
    assert report.places.is_geographic and report.places.goes_up
    error = report.error_maps[0]
    assert (error.units, error.values.shape) == ("K", (4, 6)) and error.plain is not None
    part = slice("2001-01-15", "2001-01-20")
    wrong = model.predict(x)["t2m"].sel(time=part) - y["t2m"].sel(time=part)
    np.testing.assert_allclose(error.values, np.sqrt(np.square(wrong).mean("time")).values, rtol=1e-4)
    assert "validation/loss of the plain net" in curves_of(report)["values"]
    assert len(report.routing_gains) == 1 and report.routing_gains[0].num_samples == 4
    # A plain net that was trained for longer has epochs and seconds of its own.
    longer = replace(report, plain_history=[{"epoch": n + 1, "train/loss": 1.0, "seconds": 2.0} for n in range(5)])
    assert figures(longer)["epochs"] == "2; plain net 5" and figures(longer)["training"].endswith("plain net 10 s")
    assert curves_of(longer)["epochs"] == [1, 2, 3, 4, 5]
    assert read_fit(tmp_path / "model", "mine", None, silently).error_maps == ()
    # The best is on top, and what is not finite, which is stored as null, at the end.
    table = model.score(x, y, period="2001-01-15:2001-01-20")
    write_scores(tmp_path / "model", "validation", replace(table, rmse={**table.rmse, "model": (float("nan"),)}))
    rows = read_fit(tmp_path / "model", "mine", None, silently).scores.rows
    assert [row.values.get("RMSE t2m") for row in rows[:-1]] == sorted(
        e[0] for n, e in table.rmse.items() if n != "model"
    )
    assert rows[-1].is_own and "RMSE t2m" not in rows[-1].values
    write_page([read_fit(tmp_path / "model", "mine", None, silently)], tmp_path / "without.html")
    assert write_page([report], tmp_path / "report.html") < 300_000


def test_a_mesh_has_its_nodes_and_regions(tmp_path: Path) -> None:
    recipe = MESH_RECIPES["heat-mesh/icosphere"]
    assert isinstance(recipe, MeshRecipe)
    data = replace(recipe.data, num_train_runs=1, num_validation_runs=1, num_test_runs=1, num_steps=5)
    recipe = replace(recipe, data=data, training=replace(recipe.training, batch_size=4, max_epochs=1, device="cpu"))
    report = read_run(make_run("heat-mesh/icosphere", recipe, tmp_path / "run"), "mesh", ReadOptions(), silently)
    assert report.places is not None and report.places.kind == "mesh"
    assert report.gates[0].places is report.places
    assert report.regions is not None and report.regions.shape == (2562,)
    assert write_page([report], tmp_path / "report.html") < 500_000


def test_images_have_a_commonest_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_idx_set(tmp_path / "mnist", 60, 20)
    publish(monkeypatch, root)
    plan = replace(IMAGE_TRAINING, batch_size=20, evaluation_batch_size=20, max_epochs=1, device="cpu")
    recipe = ImageRecipe(data=ImageData(root=root), model=SpatialMoEClassifierModel(filters=2), training=plan)
    run = make_run("mnist/smoe", recipe, tmp_path / "run")
    report = read_run(run, "digits", ReadOptions(data={"root": root}), silently)
    # Two images of each of ten classes.
    baseline = next(row for row in report.scores.rows if row.name == "commonest class")
    assert baseline.values == {"accuracy": pytest.approx(10.0)}
    assert report.error_maps == () and len(report.gates) >= 1


def test_models_without_gates_of_their_own(tmp_path: Path) -> None:
    assert read_gates(nn.Sequential(nn.Conv2d(1, 1, 3)), None) == ()
