"""The recipe.json of a run, which may come from a stranger: what it says is checked, and it has nothing written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from smoe.cli.main import main
from smoe.training.run_directory import RunDirectory, RunError
from smoe_paper.experiments.experiment import all_recipes
from smoe_paper.experiments.runs import open_run, read_recipe


def stored_recipe(folder: Path, **changes: Any) -> dict[str, Any]:
    """Writes the recipe.json of a run of heat, with entries changed, and returns its content."""
    content = {"name": "heat/smoe", "recipe": all_recipes()["heat/smoe"].plain(), **changes}
    folder.mkdir(exist_ok=True)
    (folder / "recipe.json").write_text(json.dumps(content))
    return content


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": 5}, "name must be a text, got 5"),
        ({"name": None}, "name must be a text, got None"),
        ({"recipe": [1]}, r"recipe must be a dictionary, got \[1\]"),
        ({"recipe": {}}, "experiment must be a text, got None"),
        ({"recipe": {"experiment": ["heat"]}}, r"experiment must be a text, got \['heat'\]"),
        ({"recipe": {"experiment": "heat", "rule": []}}, "HeatRecipe lacks the field 'data'"),
    ],
)
def test_a_wrong_entry_is_refused_in_one_line_with_the_file(
    tmp_path: Path, changes: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stored_recipe(tmp_path / "run", **changes)
    with pytest.raises(RunError, match=rf"run.recipe\.json: {message}"):
        read_recipe(RunDirectory(tmp_path / "run"))
    for command in (["evaluate"], ["train", "--resume"]):
        assert main([*command, str(tmp_path / "run")]) in (1, 2)
        error = capsys.readouterr().err
        assert "recipe.json: " in error and error.count("\n") == 1


def test_a_run_of_others_writes_only_where_it_is_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from smoe_paper.experiments.runs import train
    from smoe_paper.heat.recipes import HeatDiffusion, HeatRecipe

    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    small = HeatDiffusion((8, 8), num_steps=3, num_train_runs=2, num_validation_runs=1, num_test_runs=1)
    recipe = HeatRecipe(data=small)
    recipe = replace(recipe, training=replace(recipe.training, max_epochs=1, batch_size=2, device="cpu"))
    train("heat/smoe", recipe, tmp_path / "run", notify=lambda _: None)
    content = json.loads((tmp_path / "run" / "recipe.json").read_text())
    elsewhere = tmp_path / "elsewhere"

    content["recipe"]["data"]["cache_dir"] = str(elsewhere)
    (tmp_path / "run" / "recipe.json").write_text(json.dumps(content))
    open_run(tmp_path / "run", splits=("test",), notify=lambda _: None)
    assert not elsewhere.exists()
    open_run(tmp_path / "run", splits=("test",), notify=lambda _: None, data={"cache_dir": elsewhere})
    assert len(list(elsewhere.iterdir())) == 1

    # The run directory itself is a place for it, and a way out of it is none.
    for place, is_used in (("run/frames", True), ("run/../out", False)):
        content["recipe"]["data"]["cache_dir"] = str(tmp_path / place)
        (tmp_path / "run" / "recipe.json").write_text(json.dumps(content))
        open_run(tmp_path / "run", splits=("test",), notify=lambda _: None)
        assert (tmp_path / place).exists() == is_used

    content["recipe"]["data"]["cache_dir"] = str(tmp_path / "theirs")
    (tmp_path / "run" / "recipe.json").write_text(json.dumps(content))
    resume = ["train", "--resume", str(tmp_path / "run"), "--training.max-epochs", "2"]
    assert main(resume) == 0
    assert "theirs', which is outside the run and the working directory" in capsys.readouterr().err
    assert not (tmp_path / "theirs").exists()
    assert main([*resume[:-1], "3", "--data.cache-dir", str(tmp_path / "ours")]) == 0
    assert (tmp_path / "ours").is_dir()
