from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from smoe.training.run_directory import RunDirectory, RunError

RECIPE = {"name": "heat/smoe", "recipe": {"seed": 0, "data": {"num_steps": 5}}}


def test_a_new_directory_holds_recipe_and_versions(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "new")
    run.check(RECIPE, resume=False)
    assert not run.path.exists()
    run.begin(RECIPE)
    assert run.read_recipe() == RECIPE
    environment = json.loads(run.environment_file.read_text())
    assert environment["packages"]["torch"] and environment["python"]


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.begin(RECIPE)
    with pytest.raises(RunError, match="holds a run already; add --resume"):
        run.check(RECIPE, resume=False)
    run.check(RECIPE, resume=True)


def test_a_run_of_another_recipe_is_not_resumed(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.begin(RECIPE)
    other = {"name": "heat/smoe", "recipe": {"seed": 1, "data": {"num_steps": 6}}}
    with pytest.raises(RunError, match=r"recipe\.data\.num_steps is 5 there and 6 now; recipe\.seed is 0 there and 1"):
        run.check(other, resume=True)


def test_history_is_one_json_object_per_line_without_nan(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert run.read_history() == []
    run.write_history([{"epoch": 1, "validation/mse": 0.5}, {"epoch": 2, "validation/mse": math.nan}])
    assert run.metrics_file.read_text().count("\n") == 2
    assert "NaN" not in run.metrics_file.read_text()
    assert run.read_history() == [{"epoch": 1, "validation/mse": 0.5}, {"epoch": 2, "validation/mse": None}]


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run directory"):
        RunDirectory(tmp_path).read_recipe()
    (tmp_path / "recipe.json").write_text('{"name"')
    with pytest.raises(RunError, match="is damaged"):
        RunDirectory(tmp_path).read_recipe()
