"""What a report reads of runs: errors against loops, baselines, hashes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from image_files import publish, write_idx_set
from sample_reports import sample_report
from smoe._maps import Places
from smoe.reports._page import write_page
from smoe.reports.read_fit import read_and_compare, with_plain
from smoe.reports.run_report import RunReport
from smoe.training.run_directory import RunError
from smoe_paper.experiments.read_run import Measured, ReadOptions, measure, read_run, read_split
from smoe_paper.experiments.recipe import Recipe
from smoe_paper.experiments.runs import open_run, train
from smoe_paper.experiments.task import BatchedSamples
from smoe_paper.heat.recipes import HEAT_TRAINING, ConvNetModel, HeatDiffusion, HeatRecipe
from smoe_paper.heat_mesh.recipes import MESH_RECIPES, MeshRecipe
from smoe_paper.images.recipes import IMAGE_TRAINING, ImageData, ImageRecipe, SpatialMoEClassifierModel

DATA = HeatDiffusion(spatial_shape=(9, 7), num_steps=10, num_train_runs=8, num_validation_runs=2, num_test_runs=2)
PLAN = replace(HEAT_TRAINING, max_epochs=2, stop_at=None, device="cpu", evaluation_batch_size=7)


def silently(_: str) -> None:
    pass


def read_runs(paths: list[Path], options: ReadOptions, **more: Any) -> list[RunReport]:
    return read_and_compare(paths, partial(read_run, options=options, **more))


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


class Fields(BatchedSamples):
    def __init__(self, predictions: torch.Tensor, times: np.ndarray) -> None:
        self.predictions, self.times = predictions, times

    def __len__(self) -> int:
        return len(self.predictions)

    def __getitems__(self, indices: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return self.predictions[list(indices)] + 1, self.predictions[list(indices)]


def test_errors_are_those_of_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    prediction, truth = torch.randn(2, 5, 2, 3, 4, generator=generator)
    truth[1, 0, 2, 3] = float("nan")
    truth[:, 1, 0, 0] = float("nan")
    batches = [(prediction[:3], truth[:3]), (prediction[3:], truth[3:])]
    fields = Fields(prediction, np.array(["2001-01-31T06", "2001-02-01T06", "2002-01-01T06"] * 2)[:5].astype("M8[h]"))
    measured = measure(batches, Places("grid", (3, 4)), (("z", "m"), ("t", "K")), fields)
    maps = measured.maps
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
    assert measure([(torch.randn(4, 10), torch.zeros(4, dtype=torch.int64))], None, (), fields) == Measured()
    assert measure(batches, Places("grid", (5, 4)), (), fields) == Measured()
    # Samples over time, each beside its own input, over both batches; errors of two months, and of no hours, which are
    # the same.
    assert [one.name for one in measured.examples] == [f"sample {n}" for n in range(5)]
    for number, example in enumerate(measured.examples):
        np.testing.assert_array_equal(example.input[2], prediction[number, 0] + 1)
        np.testing.assert_array_equal(example.truth, truth[number, 0])
        np.testing.assert_array_equal(example.prediction, prediction[number, 0])
    assert [(one.name, one.steps) for one in measured.breakdowns] == [
        ("z, RMSE by month", (1.0, 2.0)),
        ("t, RMSE by month", (1.0, 2.0)),
    ]
    squares = (prediction - truth)[:, 0].square().flatten(1).double().nanmean(1)
    expected = [squares[[0, 2, 3]].mean().sqrt(), squares[[1, 4]].mean().sqrt()]
    np.testing.assert_allclose(measured.breakdowns[0].values["this run"], expected, rtol=1e-6)


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
    assert error.others["conv"] is conv.error_maps[0].values
    # The mean over the pixels is the metric of the whole split.
    assert np.mean(np.square(error.values)) == pytest.approx(last["test/mse"], rel=1e-4)
    assert smoe.regions is not None and smoe.regions.shape == (63,)
    # The steps of the first run follow each other: what is predicted for one is the next one's input.
    assert [one.name for one in smoe.examples] == [f"run 0, step {step}" for step in range(10)]
    for before, after in zip(smoe.examples[:-1], smoe.examples[1:], strict=True):
        np.testing.assert_array_equal(before.truth, after.input[2])
    assert set(smoe.filters) == {"diffusivity 0.0025", "diffusivity 0.025", "diffusivity 0.25"}
    assert not conv.error_maps[0].others
    assert any("information about the known regions" in remark for remark in smoe.remarks)


def test_errors_of_other_data_are_not_compared() -> None:
    report, other = sample_report(), sample_report("other", identity="other data", is_plain=True)
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


def test_runs_are_given_once(heat: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run directory: it has no recipe"):
        read_runs([tmp_path], ReadOptions(), notify=silently)
    with pytest.raises(RunError, match="is given twice: give each run once"):
        read_runs([heat, heat.parent / "." / heat.name], ReadOptions(), notify=silently)


def test_a_mesh_has_its_nodes_and_regions(tmp_path: Path) -> None:
    recipe = MESH_RECIPES["heat-mesh/icosphere"]
    assert isinstance(recipe, MeshRecipe)
    data = replace(recipe.data, num_train_runs=1, num_validation_runs=1, num_test_runs=1, num_steps=5)
    recipe = replace(recipe, data=data, training=replace(recipe.training, batch_size=4, max_epochs=1, device="cpu"))
    report = read_run(make_run("heat-mesh/icosphere", recipe, tmp_path / "run"), "mesh", ReadOptions(), silently)
    assert report.places is not None and report.places.kind == "mesh"
    assert report.gates[0].places is report.places
    assert report.regions is not None and report.regions.shape == (2562,)
    assert write_page([report], tmp_path / "report.html") < 700_000


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
