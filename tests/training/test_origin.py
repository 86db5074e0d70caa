"""What proves that this user wrote a file of a run, and what does not."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from smoe.training import origin
from smoe.training.origin import OriginError, is_own, record_origin
from smoe.training.run_directory import RunDirectory

RECIPE = {"name": "toy", "recipe": {"data": {"store": "/elsewhere"}}}


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "smoe" / "origin.key"


def test_what_was_written_here_is_known_after_a_move_and_nothing_else_is(tmp_path: Path, key: Path) -> None:
    (tmp_path / "run").mkdir()
    record_origin(tmp_path / "run", {"recipe.json": b"mine", "environment.json": b"here"})
    assert len(key.read_bytes()) == 32 and key.stat().st_mode & 0o777 == 0o600
    (tmp_path / "run").rename(tmp_path / "moved")
    moved = tmp_path / "moved"
    assert is_own(moved, "recipe.json", b"mine")
    assert not is_own(moved, "recipe.json", b"theirs")
    # The code of one file is none for another.
    assert not is_own(moved, "recipe.json", b"here")
    assert not is_own(moved, "metrics.jsonl", b"mine")


def test_another_key_proves_nothing(tmp_path: Path, key: Path) -> None:
    record_origin(tmp_path, {"recipe.json": b"mine"})
    key.write_bytes(bytes(32))
    assert not is_own(tmp_path, "recipe.json", b"mine")
    key.unlink()
    assert not is_own(tmp_path, "recipe.json", b"mine")
    assert not key.exists()


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"recipe.json": 3}', '{"recipe.json": [3, "\\u00fc"]}', "[" * 5000]
)
def test_a_damaged_record_proves_nothing(tmp_path: Path, key: Path, content: str) -> None:
    del key
    record_origin(tmp_path, {"environment.json": b""})
    (tmp_path / "origin.json").write_text(content)
    assert not is_own(tmp_path, "recipe.json", b"mine")
    record_origin(tmp_path, {"recipe.json": b"mine"})
    assert is_own(tmp_path, "recipe.json", b"mine")


def test_a_key_that_others_can_read_or_that_is_damaged_is_not_used(tmp_path: Path, key: Path) -> None:
    record_origin(tmp_path, {"recipe.json": b"mine"})
    os.chmod(key, 0o640)
    assert not is_own(tmp_path, "recipe.json", b"mine")
    with pytest.raises(OriginError, match=r"origin\.key cannot be used: others can read or write it; remove it, or ch"):
        record_origin(tmp_path, {"recipe.json": b"mine"})
    os.chmod(key, 0o600)
    key.write_bytes(b"short")
    with pytest.raises(OriginError, match=r"origin\.key cannot be used: it is damaged; remove it"):
        record_origin(tmp_path, {"recipe.json": b"mine"})


def test_without_a_home_a_run_begins_and_says_what_is_missing(
    tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key.parent.parent.write_text("a file where the folder would be")
    run = RunDirectory(tmp_path / "run")
    reason = run.begin(RECIPE)
    assert reason is not None and "origin.key cannot be used: Not a directory" in reason
    assert run.read_recipe_and_origin() == (RECIPE, False)
    monkeypatch.setattr(Path, "home", classmethod(lambda _: (_ for _ in ()).throw(RuntimeError("no home"))))
    # A relative folder of states is ignored, as its specification asks.
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    with pytest.raises(OriginError, match="there is no home folder to keep a key in"):
        origin.state_folder()


def test_of_processes_that_make_a_key_one_wins(tmp_path: Path, key: Path) -> None:
    folders = [tmp_path / str(number) for number in range(16)]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda folder: record_origin(folder, {"recipe.json": b"mine"}), folders))
    assert all(is_own(folder, "recipe.json", b"mine") for folder in folders)
    assert [*key.parent.iterdir()] == [key]


def test_a_kill_between_the_record_and_the_recipe_leaves_an_own_run(
    tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del key
    run = RunDirectory(tmp_path)
    assert run.begin(RECIPE) is None
    assert run.read_recipe_and_origin() == (RECIPE, True) and run.has_own_environment()

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    longer = {"name": "toy", "recipe": {"max_epochs": 9}}
    with monkeypatch.context() as patch:
        patch.setattr("smoe.training.run_directory.write_atomically", kill)
        with pytest.raises(KeyboardInterrupt):
            run.begin(longer)
    assert run.read_recipe_and_origin() == (RECIPE, True)
    run.begin(longer)
    assert run.read_recipe_and_origin() == (longer, True)
    run.recipe_file.write_text(json.dumps(longer))
    assert run.read_recipe_and_origin() == (longer, False)
