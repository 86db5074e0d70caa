"""Every experiment behind one protocol; what belongs to no experiment works in all."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_weather
from smoe._json import RecipeError
from smoe.nn import RoutedLayer, SpatialGate
from smoe.training.plan import check_monitor
from smoe.training.run_directory import RunDirectory, load_checkpoint
from smoe.training.task import metric_names
from smoe_paper.experiments.experiment import EXPERIMENTS, all_experiments, all_recipes, experiment_of, find_experiment
from smoe_paper.experiments.recipe import Adam, AuxiliaryLosses, Recipe
from smoe_paper.experiments.runs import train
from smoe_paper.experiments.task import assemble_task
from smoe_paper.heat.recipes import HEAT_TRAINING, HeatDiffusion, HeatRecipe


def quietly(_: str) -> None:
    pass


def test_the_protocol_is_light() -> None:
    """Recipes, tables, options and commands of all experiments need no torch."""
    program = (
        "import sys; from smoe_paper.experiments.experiment import all_experiments\n"
        "for e in all_experiments():\n"
        "    assert e.name and e.recipe_type and e.recipes and e.tables.tables, e\n"
        "    [e.published(name) for name in e.recipes]\n"
        "    [row.recipe.plain() for table in e.tables.tables for row in table.rows]\n"
        "heavy = {'torch', 'numpy', 'xarray', 'matplotlib', 'rich', 'tyro'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_names_and_classes_belong_together() -> None:
    for name, experiment in zip(EXPERIMENTS, all_experiments(), strict=True):
        assert experiment.name == experiment.tables.name == name
        assert experiment.recipe_type.experiment == name
        for recipe in experiment.recipes.values():
            assert type(recipe) is experiment.recipe_type and experiment_of(recipe) is experiment
        for table in experiment.tables.tables:
            assert table.name.startswith(f"{name}/")
    with pytest.raises(RecipeError, match="there is no experiment named 'haet'; did you mean 'heat'"):
        find_experiment("haet")


@pytest.mark.parametrize("name", ["heat/smoe", "mnist/smoe", "heat-mesh/plain"])
def test_an_experiment_that_needs_no_data_is_built_without_and_monitors_metrics_that_exist(name: str) -> None:
    recipe = all_recipes()[name]
    task = experiment_of(recipe).build(recipe, (), quietly)
    assert task.splits == {}
    check_monitor(recipe.training, metric_names(task.metrics))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recipe]:
    """Recipes of two experiments with one SMoE gate, of a second or two."""
    folder = tmp_path_factory.mktemp("tiny")
    data = HeatDiffusion(spatial_shape=(7, 5), num_steps=5, num_train_runs=8, num_validation_runs=1, num_test_runs=1)
    return {
        "heat/smoe": HeatRecipe(data=data, training=replace(HEAT_TRAINING, max_epochs=1, device="cpu")),
        "weather/smoe": tiny_weather.tiny_recipe("weather/smoe", tiny_weather.make_store(folder / "store")),
    }


NAMES = ("heat/smoe", "weather/smoe")


def scores_of(state: dict[str, Any]) -> torch.Tensor:
    return next(value for key, value in state.items() if key.endswith("gate.scores"))


def train_and_load(name: str, recipe: Recipe, path: Path) -> dict[str, Any]:
    train(name, recipe, path, notify=quietly)
    return load_checkpoint(RunDirectory(path).last_checkpoint)["model"]


def start_of(recipe: Recipe) -> dict[str, Any]:
    return experiment_of(recipe).build(recipe, (), quietly).model.state_dict()


@pytest.mark.parametrize("name", NAMES)
def test_a_learning_rate_of_the_gates_in_every_experiment(name: str, tiny: dict[str, Recipe], tmp_path: Path) -> None:
    recipe = replace(tiny[name], optimizer=Adam(lr=1e-3, gate_lr=0.0))
    task = experiment_of(recipe).build(recipe, (), quietly)
    gates = {id(p) for gate in task.model.modules() if isinstance(gate, SpatialGate) for p in gate.parameters()}
    rates = {group["name"]: group["lr"] for group in task.optimizer.param_groups}
    assert rates["gates"] == 0.0 and set(rates.values()) == {0.0, 1e-3}
    group = next(group for group in task.optimizer.param_groups if group["name"] == "gates")
    assert {id(parameter) for parameter in group["params"]} == gates
    state, start = train_and_load(name, recipe, tmp_path / "run"), task.model.state_dict()
    assert torch.equal(scores_of(state), scores_of(start))
    moved = [key for key, _ in task.model.named_parameters() if not torch.equal(state[key], start[key])]
    assert moved and not any(key.endswith("gate.scores") for key in moved)


@pytest.mark.parametrize("name", NAMES)
def test_auxiliary_losses_in_every_experiment(name: str, tiny: dict[str, Recipe], tmp_path: Path) -> None:
    recipe = replace(tiny[name], auxiliary=AuxiliaryLosses(importance=True, weight=3.0))
    task = experiment_of(recipe).build(recipe, ("train",), quietly)
    input, _ = task.collate(task.splits["train"].__getitems__([0, 1]))  # type: ignore[attr-defined]
    task.model.train()(input)
    assert task.auxiliary_loss is not None
    gate = next(module.gate for module in task.model.modules() if isinstance(module, RoutedLayer))
    per_expert = gate.state_dict()["scores"].softmax(dim=0).sum(dim=(1, 2))
    expected = 3.0 * per_expert.var(correction=0) / per_expert.mean() ** 2
    torch.testing.assert_close(task.auxiliary_loss(task.model), expected)
    last = train(name, recipe, tmp_path / "run", notify=quietly)
    assert last["epoch"] == 1


def test_auxiliary_losses_without_smoe_layers_are_refused_before_any_data(tiny: dict[str, Recipe]) -> None:
    recipe = replace(tiny["heat/smoe"], auxiliary=AuxiliaryLosses(importance=True))
    with pytest.raises(ValueError, match=r"auxiliary losses need SMoE layers, but Linear has none"):
        assemble_task(recipe, torch.nn.Linear(2, 2), torch.nn.functional.mse_loss, [], None, lambda batch: batch)
    recipe = replace(tiny["weather/smoe"], auxiliary=AuxiliaryLosses(load=True))
    with pytest.raises(ValueError, match=r"auxiliary\.load needs gates with noise, but .* has a TensorGate"):
        experiment_of(recipe).build(recipe, (), quietly)
