"""Places that a recipe.json names: used inside the run and the working directory, given as flags otherwise."""

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
from smoe._plain import classes_of, is_path, type_hints
from smoe.cli.main import main
from smoe.training.run_directory import RunDirectory
from smoe_paper.experiments.experiment import all_experiments
from smoe_paper.experiments.runs import outside_places, places_of, replace_places, train
from smoe_paper.heat.recipes import HeatDiffusion, HeatRecipe


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
def test_a_run_opens_nothing_outside_its_directory_and_the_working_directory(
    folder: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, place = tmp_path / "run", str(folder / "regions.npy")
    args = commands(run)[command]
    with opened_files() as opened:
        assert main(args) == 1
    assert not [path for path in opened if path.startswith(str(folder))]
    errors = [line for line in capsys.readouterr().err.splitlines() if "simulated data are not kept" not in line]
    assert errors == [
        f"smoe: error: {run}/recipe.json: data.region_map is {place!r}, outside the run and the working directory: "
        "give the place as --data.region-map PATH (in Python region_map=PATH)"
    ]
    assert main([*args, "--data.region-map", place]) == 0
    # What lies below the working directory is used.
    monkeypatch.chdir(folder)
    with opened_files() as opened:
        assert main(commands(run)[command]) == 0, capsys.readouterr().err
    assert place in opened


def test_the_weights_to_start_from_are_asked_for_only_before_the_first_checkpoint(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    args = [*commands(run)["resume"], "--data.region-map", str(folder / "regions.npy")]
    assert main(args) == 0
    assert json.loads((run / "recipe.json").read_text())["recipe"]["init_from"] == str(folder / "start")
    for file in (run / "checkpoints").iterdir():
        file.unlink()
    assert main(args) == 1
    assert main([*args, "--init-from", str(folder / "start")]) == 0


@pytest.mark.parametrize("where", ["checkpoints", "pictures", "deep/er/file"])
def test_links_out_of_a_run_are_refused(
    folder: Path, tmp_path: Path, where: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    outside.mkdir()
    if where == "checkpoints":
        (run / where).rename(outside / where)
    (run / where).parent.mkdir(parents=True, exist_ok=True)
    (run / where).symlink_to(outside / where)
    (run / "harmless").symlink_to("recipe.json")
    before = sorted(outside.rglob("*"))
    for args in commands(run).values():
        capsys.readouterr()
        assert main([*args, "--data.region-map", str(folder / "regions.npy")]) == 1
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
    recipe = HeatRecipe(data=HeatDiffusion(region_map=Path(place)))
    assert [*outside_places(recipe, RunDirectory("run"))] == ["data.region_map"]
    for inside in ("run/../run/regions.npy", "regions.npy", str(tmp_path / "here" / "x")):
        assert not outside_places(replace_places(recipe, {"data.region_map": Path(inside)}), RunDirectory("run"))
    assert not outside_places(replace_places(recipe, {"data.region_map": tmp_path / "other/x"}), RunDirectory(tmp_path))


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
