"""`load` opens the runs of every experiment, in evaluation mode and in physical units."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tiny_weather
from ens10_files import write_ens10
from image_files import publish, write_idx_set
from memory_source import Silent
from smoe.training.run_directory import RunError
from smoe_paper.ens10.prepare import prepare
from smoe_paper.ens10.recipes import ENSEMBLE_RECIPES, EnsembleData
from smoe_paper.ens10.source import TASKS, open_ens10
from smoe_paper.experiments.experiment import EXPERIMENTS
from smoe_paper.experiments.recipe import Recipe
from smoe_paper.experiments.runs import open_run, train
from smoe_paper.heat.recipes import HEAT_TRAINING, HeatDiffusion, HeatRecipe
from smoe_paper.heat_mesh.recipes import MESH_RECIPES
from smoe_paper.images.recipes import IMAGE_TRAINING, ImageData, ImageRecipe, SpatialMoEClassifierModel


def quietly(_: str) -> None:
    pass


def heat(_: Path) -> tuple[str, Recipe]:
    data = HeatDiffusion(spatial_shape=(7, 5), num_steps=5, num_train_runs=8, num_validation_runs=1, num_test_runs=1)
    return "heat/smoe", HeatRecipe(data=data, training=replace(HEAT_TRAINING, max_epochs=1, device="cpu"))


def weather(folder: Path) -> tuple[str, Recipe]:
    return "weather/smoe", tiny_weather.tiny_recipe("weather/smoe", tiny_weather.make_store(folder / "store"))


def ens10(folder: Path) -> tuple[str, Recipe]:
    root = write_ens10(folder / "files", "t850")
    source = open_ens10(root, TASKS["t850"], 5)
    prepare(source, root, folder / "store", (1998, 1998), Silent())
    recipe = ENSEMBLE_RECIPES["ens10/smoe"]
    return "ens10/smoe", replace(
        recipe,
        data=EnsembleData(folder / "store", (1998, 1998), (1999, 1999), (2000, 2000)),
        model=replace(recipe.model, filters=2),  # type: ignore[call-arg]
        training=replace(recipe.training, batch_size=2, max_epochs=1, device="cpu"),
    )


def images(folder: Path) -> tuple[str, Recipe]:
    data = ImageData(root=write_idx_set(folder / "mnist", 100, 10))
    plan = replace(IMAGE_TRAINING, batch_size=20, evaluation_batch_size=50, max_epochs=1, device="cpu")
    return "mnist/smoe", ImageRecipe(data=data, model=SpatialMoEClassifierModel(filters=2), training=plan)


def heat_mesh(_: Path) -> tuple[str, Recipe]:
    recipe = MESH_RECIPES["heat-mesh/plain"]
    return "heat-mesh/plain", replace(
        recipe,
        data=replace(recipe.data, domain="line", num_steps=5, num_train_runs=8, num_validation_runs=1, num_test_runs=1),
        training=replace(recipe.training, max_epochs=1, device="cpu"),
    )


# Path that is refused where it lies outside the run directory.
NEEDED = {"heat": None, "weather": "store", "ens10": "store", "images": "root", "heat-mesh": None}

MADE: dict[str, tuple[Callable[[Path], tuple[str, Recipe]], float]] = {
    # With a number that values in physical units exceed: temperatures near 280 K, geopotentials; 0 where there are
    # no units.
    "heat": (heat, 0.0),
    "weather": (weather, 100.0),
    "ens10": (ens10, 100.0),
    "images": (images, 0.0),
    "heat-mesh": (heat_mesh, 0.0),
}


def test_every_experiment_is_here() -> None:
    assert set(MADE) == set(EXPERIMENTS)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_run_is_opened_from_its_folder_alone(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, least = MADE[name]
    recipe_name, recipe = make(tmp_path)
    if name == "images":
        publish(monkeypatch, recipe.data.root)
    record = train(recipe_name, recipe, tmp_path / "run", notify=quietly)
    (tmp_path / "moved").mkdir()
    (tmp_path / "run").rename(tmp_path / "moved" / "run")
    run = open_run(str(tmp_path / "moved" / "run"), notify=quietly)
    assert run.name == recipe_name and run.recipe == recipe and not run.model.training
    prediction, truth = next(iter(run.predict("test")))
    assert len(prediction) == len(truth) and not prediction.requires_grad
    assert torch.isfinite(prediction.float()).all()
    assert float(truth.float().abs().max()) >= least
    values = run.evaluate("test")
    same = [metric for metric in values if f"test/{metric}" in record]
    assert same
    for metric in same:
        assert values[metric] == pytest.approx(record[f"test/{metric}"], rel=1e-4, nan_ok=True), metric
    monkeypatch.chdir(tmp_path / "moved")
    _check_elsewhere(name, tmp_path / "moved" / "run", values)


def _check_elsewhere(name: str, path: Path, values: dict[str, float]) -> None:
    def evaluate(data: dict[str, Path] | None = None) -> dict[str, float]:
        return open_run(path, notify=quietly, data=data).evaluate("test")

    field = NEEDED[name]
    if field is None:
        assert evaluate() == pytest.approx(values, nan_ok=True)
        return
    with pytest.raises(
        RunError, match=rf"recipe\.json: data.{field} is '.*', outside the run and the working directory"
    ):
        evaluate()
    if name == "images":
        open_run(path, splits=(), notify=quietly)
    content = json.loads((path / "recipe.json").read_text())
    data = Path(content["recipe"]["data"][field])
    assert evaluate({field: data}) == pytest.approx(values, nan_ok=True)
    # A path in the run directory is the run's own.
    data.rename(path / "data")
    content["recipe"]["data"][field] = str(path / "data")
    (path / "recipe.json").write_text(json.dumps(content))
    assert evaluate() == pytest.approx(values, nan_ok=True)
