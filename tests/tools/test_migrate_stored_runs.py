"""The migration of stored runs keeps every number, and does nothing twice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tools.migrate_stored_runs import main, migrate_folder

from smoe.experiments.migrations import SCHEMA
from smoe.experiments.result_tables.stored_runs import RunStore

VERSION_1 = Path(__file__).parents[1] / "experiments" / "version_1_runs"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of runs that version 1 stored, with a reference beside them."""
    shutil.copytree(VERSION_1, tmp_path / "runs")
    (tmp_path / "runs" / "reference-persistence.json").write_text('{"label": "Persistence"}')
    return tmp_path


def without_recipe(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in ("recipe", "differences", "schema")}


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (folder / "runs").iterdir()}


def test_every_number_stays(folder: Path) -> None:
    old = [json.loads(path.read_text()) for path in VERSION_1.iterdir()]
    assert migrate_folder(folder) == (len(old), len(old))
    assert contents(folder)["reference-persistence.json"] == '{"label": "Persistence"}'
    new = [result for key, result in RunStore(folder / "runs").runs().items() if contents(folder)[f"{key.name}.json"]]
    assert len(new) == len(old) == len(contents(folder)) - 1
    key = "seconds"
    for before, after in zip(sorted(old, key=lambda run: run[key]), sorted(new, key=lambda run: run[key]), strict=True):
        assert without_recipe(before) == without_recipe(after)
        assert after["schema"] == SCHEMA and "differences" not in after and "rule" in after["recipe"]


def test_a_second_time_changes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder)]) == 0
    once = contents(folder)
    assert main([str(folder)]) == 0
    num_runs = len(list(VERSION_1.iterdir()))
    assert capsys.readouterr().out.splitlines() == [
        f"{folder}: {num_runs} of {num_runs} runs rewritten",
        f"{folder}: 0 of {num_runs} runs rewritten",
    ]
    assert contents(folder) == once


def test_without_a_folder_it_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "python tools/migrate_stored_runs.py" in capsys.readouterr().err
