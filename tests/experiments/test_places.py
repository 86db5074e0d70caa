"""Places that a recipe.json names: those of a run that others made are opened only where the user allows it."""

from __future__ import annotations

import json
import shutil
import typing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opened_files import opened_files
from smoe.cli.main import main
from smoe.experiments.places import outside_places, places_of, replace_places
from smoe.experiments.plain import classes_of, is_path, type_hints
from smoe.experiments.registry import all_experiments
from smoe.experiments.runs import open_run, train
from smoe.paper.heat.recipes import HeatDiffusion, HeatRecipe
from smoe.training.run_directory import RunDirectory, RunError


def quietly(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of heat, whose map of regions is outside the run directory, and weights it started from."""
    folder = tmp_path_factory.mktemp("made")
    np.save(folder / "regions.npy", np.arange(64).reshape(8, 8) % 3)
    small = HeatDiffusion((8, 8), num_steps=3, num_train_runs=2, num_validation_runs=1, num_test_runs=1)
    recipe = HeatRecipe(data=replace(small, region_map=folder / "regions.npy", cache_dir=folder / "cache"))
    recipe = replace(recipe, training=replace(recipe.training, max_epochs=1, batch_size=2, device="cpu"))
    train("heat/smoe", recipe, folder / "start", notify=quietly)
    train("heat/smoe", replace(recipe, init_from=folder / "start"), folder / "run", notify=quietly)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made / "run", tmp_path / "run", symlinks=True)
    monkeypatch.chdir(tmp_path)
    return made


def commands(run: Path) -> dict[str, list[str]]:
    return {
        "evaluate": ["evaluate", str(run)],
        "show": ["show", str(run)],
        "report": ["report", str(run), "-o", "report.html"],
        "resume": ["train", "--resume", str(run), "--training.max-epochs", "2"],
    }


@pytest.mark.parametrize("command", ["evaluate", "show", "report", "resume"])
def test_a_run_of_others_opens_nothing_outside_its_directory(
    folder: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    args = commands(run)[command]
    (run / "origin.json").unlink()
    with opened_files() as opened:
        assert main(args) == 1
    assert not [path for path in opened if path.startswith(str(folder))]
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    place = str(folder / "regions.npy")
    assert f"smoe: error: {run}/recipe.json: data.region_map is {place!r}, outside the run directory" in error
    assert "--data.region-map PATH (in Python region_map=PATH), or allow all places of this run by --trust" in error

    given = ["--data.region-map", place, *(["--init-from", str(folder / "start")] if command == "resume" else [])]
    assert main([*args, *given]) == 0
    if command != "resume":
        assert main([*args, "--trust-places"]) == 0
        # It is no lasting promise.
        assert main(args) == 1


@pytest.mark.parametrize("command", ["evaluate", "show", "report", "resume"])
def test_an_own_run_needs_no_flag(
    folder: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened_files() as opened:
        assert main(commands(tmp_path / "run")[command]) == 0, capsys.readouterr().err
    assert str(folder / "regions.npy") in opened


def test_a_run_that_was_continued_with_trust_is_an_own_run(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    (run / "origin.json").unlink()
    assert main([*commands(run)["resume"], "--trust-places"]) == 0
    assert "simulated data are not kept" not in capsys.readouterr().err
    assert main(["evaluate", str(run)]) == 0
    assert open_run(run).recipe.data.cache_dir == folder / "cache"


def test_one_changed_byte_makes_it_a_run_of_others(folder: Path, tmp_path: Path) -> None:
    del folder
    recipe = tmp_path / "run" / "recipe.json"
    recipe.write_bytes(recipe.read_bytes() + b" ")
    with pytest.raises(RunError, match=r"data\.region_map is '.*regions\.npy', outside the run directory"):
        open_run("run")


def test_the_weights_to_start_from_are_asked_for_when_a_run_continues(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "origin.json").unlink()
    shutil.copy(folder / "regions.npy", run)
    content = json.loads((run / "recipe.json").read_text())
    content["recipe"]["data"]["region_map"] = str(run / "regions.npy")
    (run / "recipe.json").write_text(json.dumps(content))
    open_run(run, splits=("test",), notify=quietly)
    assert main(commands(run)["resume"]) == 1
    assert main([*commands(run)["resume"], "--init-from", str(folder / "start")]) == 0


@pytest.mark.parametrize("where", ["regions.npy", "checkpoints", "pictures", "deep/er/file"])
def test_links_out_of_a_run_of_others_are_refused(
    folder: Path, tmp_path: Path, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    content = json.loads((run / "recipe.json").read_text())
    content["recipe"]["data"]["region_map"] = None
    content["recipe"]["init_from"] = None
    (run / "recipe.json").write_text(json.dumps(content))
    assert main(commands(run)["resume"]) == 0
    (run / "origin.json").unlink()
    outside.mkdir()
    if where == "checkpoints":
        (run / where).rename(outside / where)
    (run / where).parent.mkdir(parents=True, exist_ok=True)
    (run / where).symlink_to(folder / where if where == "regions.npy" else outside / where)
    (run / "harmless").symlink_to("recipe.json")
    before = sorted(outside.rglob("*"))
    for name, args in commands(run).items():
        capsys.readouterr()
        assert main([*args[:-1], "3"] if name == "resume" else args) == 1
        error = capsys.readouterr().err
        assert f"run holds a link that leads out of it, {where!r}, and it is not recorded" in error
    assert sorted(outside.rglob("*")) == before
    assert main([*commands(run)["evaluate"], "--trust-places"]) == 0


@pytest.mark.parametrize("place", ["/etc", "..", "run/../x", "run/zero\0byte", "~", "relative", "run/ring"])
def test_what_is_outside(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "ring").symlink_to("ring")
    recipe = HeatRecipe(data=HeatDiffusion(region_map=Path(place)))
    assert [*outside_places(recipe, RunDirectory("run"))] == ["data.region_map"]
    inside = replace_places(recipe, {"data.region_map": Path("run/../run/regions.npy")})
    assert not outside_places(inside, RunDirectory("run"))


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
def test_every_path_of_a_recipe_is_known_and_can_be_left_away(experiment: Any) -> None:
    hints = {name: hint for name, hint in _fields(experiment.recipe_type).items() if "Path" in str(hint)}
    assert "init_from" in hints
    for name, hint in hints.items():
        assert is_path(hint) and type(None) in typing.get_args(hint), name
    for recipe in experiment.recipes.values():
        assert {*places_of(recipe)} == {*hints}
