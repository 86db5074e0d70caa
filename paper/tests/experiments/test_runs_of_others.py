"""Runs that may come from a stranger: what their recipe.json says is checked, and nothing outside is opened."""

from __future__ import annotations

import json
import shutil
import typing
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from opened_files import opened_files
from smoe._json import classes_of, is_path, type_hints
from smoe.cli.main import main
from smoe.training.run_directory import RunDirectory, RunError
from smoe_paper.experiments.experiment import all_experiments, all_recipes
from smoe_paper.experiments.runs import data_paths, outside_paths, read_recipe, train, with_data
from smoe_paper.weather.recipes import WeatherData, WeatherRecipe
from tiny_weather import make_store, tiny_recipe


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, whose store is outside the run directory."""
    folder = tmp_path_factory.mktemp("made")
    train("weather/rt", tiny_recipe("weather/rt", make_store(folder / "store")), folder / "run", notify=lambda _: None)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made / "run", tmp_path / "run", symlinks=True)
    monkeypatch.chdir(tmp_path)
    return made


def commands(run: Path) -> dict[str, list[str]]:
    return {
        "evaluate": ["evaluate", str(run)],
        "report": ["report", str(run), "-o", "report.html", "--without-data"],
        "resume": ["train", "--resume", str(run), "--training.max-epochs", "2"],
    }


@pytest.mark.parametrize("command", ["evaluate", "report", "resume"])
def test_a_run_opens_nothing_outside_its_directory_and_the_working_directory(
    folder: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, store = tmp_path / "run", str(folder / "store")
    args = commands(run)[command]
    with opened_files() as opened:
        assert main(args) == 1
    assert not [path for path in opened if path.startswith(str(folder))]
    assert capsys.readouterr().err == (
        f"smoe: error: {run}/recipe.json: data.store is {store!r}, outside the run and the working directory: give "
        "the place as --data.store PATH (in Python data={'store': PATH})\n"
    )
    assert main([*args, "--data.store", store]) == 0
    # What lies below the working directory is used.
    monkeypatch.chdir(folder)
    with opened_files() as opened:
        assert main(commands(run)[command]) == 0, capsys.readouterr().err
    assert f"{store}/store.json" in opened


@pytest.mark.parametrize("where", ["checkpoints", "environment.json", "deep/er/file"])
def test_links_out_of_a_run_are_refused(
    folder: Path, tmp_path: Path, where: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    outside.mkdir()
    if (run / where).exists():
        (run / where).rename(outside / where)
    (run / where).parent.mkdir(parents=True, exist_ok=True)
    (run / where).symlink_to(outside / where)
    (run / "harmless").symlink_to("recipe.json")
    before = sorted(outside.rglob("*"))
    for args in commands(run).values():
        capsys.readouterr()
        with opened_files() as opened:
            assert main([*args, "--data.store", str(folder / "store")]) == 1
        assert not any(Path(name).resolve().is_relative_to(outside) for name in opened)
        assert f"run holds a link that leads out of it and of the working directory, {where!r}: remove it" in (
            capsys.readouterr().err
        )
    assert sorted(outside.rglob("*")) == before


@pytest.mark.parametrize("place", ["/etc", "..", "run/../../x", "here/zero\0byte", "run/ring", "run/link"])
def test_what_is_outside(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here" / "run").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("run/ring").symlink_to("ring")
    Path("run/link").symlink_to(tmp_path / "other")
    recipe = WeatherRecipe(data=WeatherData(store=Path(place)))
    assert [*outside_paths(recipe, RunDirectory("run"))] == ["store"]
    for inside in ("run/../run/frames", "frames", str(tmp_path / "here" / "x")):
        assert not outside_paths(with_data(recipe, {"store": Path(inside)}), RunDirectory("run"))


def _fields(kind: type[Any], prefix: str = "") -> dict[str, Any]:
    """Types of all fields that a recipe can have, with those of the classes that they may hold."""
    found: dict[str, Any] = {}
    for field in fields(kind):
        hint = type_hints(kind)[field.name]
        found[f"{prefix}{field.name}"] = hint
        for option in classes_of(hint):
            found |= _fields(option, f"{prefix}{field.name}.")
    return found


@pytest.mark.parametrize("experiment", all_experiments(), ids=lambda experiment: experiment.name)
def test_every_path_of_a_recipe_is_one_of_its_data_and_can_be_left_away(experiment: Any) -> None:
    hints = {name: hint for name, hint in _fields(experiment.recipe_type).items() if "Path" in str(hint)}
    for name, hint in hints.items():
        assert is_path(hint) and type(None) in typing.get_args(hint), name
    for recipe in experiment.recipes.values():
        assert {f"data.{name}" for name in data_paths(recipe)} == {*hints}


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
