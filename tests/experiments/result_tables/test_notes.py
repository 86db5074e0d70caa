"""Sentences about results are printed beside the results they speak about, and nowhere else."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from smoe.experiments.result_tables.notes import Note, Notes, fingerprint, runs_of_row, runs_of_table
from smoe.experiments.result_tables.report import markdown
from smoe.experiments.result_tables.stored_runs import RunKey, RunStore, StoredRunError
from smoe.experiments.result_tables.tables import ResultTable, Row, Scale, ShownMetric, TableSet
from smoe.paper.heat.recipes import HeatRecipe

FIRST, SECOND = Row(("squared",), HeatRecipe()), Row(("absolute",), HeatRecipe(loss="mae"))
TABLE = ResultTable("toy/losses", "A toy", ("loss",), (FIRST, SECOND))
SCALES = (Scale("paper", "all", lambda recipe: recipe),)
TABLES = TableSet("toy", (ShownMetric("mse"),), "Errors.", (TABLE,), SCALES, "cache_dir")


def store_run(store: RunStore, recipe: HeatRecipe, value: float) -> None:
    circumstances = dict.fromkeys(("processor", "torch", "commit", "date"), "x")
    result: dict[str, Any] = {"recipe": recipe.plain(), "seed": recipe.seed, "test": {"mse": value}}
    numbers = {"parameters": 1, "gate_parameters": 0, "best_epoch": 1, "seconds": 1.0}
    store.write(RunKey.of(recipe), {**result, **numbers, **circumstances})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Results of both rows, and a note about the first row and about the table."""
    store = RunStore(tmp_path / "runs")
    store_run(store, HeatRecipe(), 1.0)
    store_run(store, HeatRecipe(loss="mae"), 2.0)
    texts = (Note(TABLE.name, "squared", "About the row.", frozenset()), Note(TABLE.name, None, "All.", frozenset()))
    Notes(texts).bound_to(TABLES, store).write(tmp_path)
    return tmp_path


def printed(folder: Path) -> str:
    return markdown(TABLES, TABLE, RunStore(folder / "runs"), Notes.read(folder))


def test_notes_are_printed_beside_the_results_they_are_about(folder: Path) -> None:
    text = printed(folder)
    assert "- squared: About the row.\n" in text and "\nAll.\n" in text


def test_notes_are_not_printed_without_the_results(folder: Path) -> None:
    shutil.rmtree(folder / "runs")
    assert "About" not in printed(folder) and "All." not in printed(folder)


def test_notes_are_not_printed_in_another_folder(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "runs", tmp_path / "elsewhere" / "runs")
    assert "About" not in printed(tmp_path / "elsewhere")


def test_notes_are_not_printed_beside_a_changed_number(folder: Path) -> None:
    store_run(RunStore(folder / "runs"), HeatRecipe(loss="mae"), 2.5)
    # The note about the row still speaks about what is stored; that about the table does not.
    assert "About the row." in printed(folder) and "All." not in printed(folder)
    store_run(RunStore(folder / "runs"), HeatRecipe(), 1.5)
    assert "About" not in printed(folder)


def test_notes_are_not_printed_beside_a_further_seed(folder: Path) -> None:
    store_run(RunStore(folder / "runs"), HeatRecipe(seed=1), 1.0)
    assert "About" not in printed(folder) and "All." not in printed(folder)
    store = RunStore(folder / "runs")
    Notes.read(folder).bound_to(TABLES, store).write(folder)
    assert "About" in printed(folder) and "All." in printed(folder)


def test_a_row_at_another_scale_is_another_result(folder: Path) -> None:
    small = Scale("small", "few", lambda recipe: replace(recipe, data=replace(recipe.data, num_train_runs=3)))
    tables, store = replace(TABLES, scales=(*SCALES, small)), RunStore(folder / "runs")
    before = runs_of_row(tables, FIRST, store)
    store_run(store, small.recipe(FIRST, 0), 1.0)  # type: ignore[arg-type]
    assert before < runs_of_row(tables, FIRST, store)
    assert runs_of_table(tables, TABLE, store) > runs_of_row(tables, FIRST, store)


def test_what_changes_a_fingerprint() -> None:
    result = {"recipe": HeatRecipe().plain(), "seed": 0, "test": {"mse": 1.0}, "seconds": 3.0}
    assert fingerprint(result) == fingerprint({**result, "seconds": 4.0})
    for change in ({"seed": 1}, {"test": {"mse": 1.1}}, {"recipe": HeatRecipe(loss="mae").plain()}):
        assert fingerprint({**result, **change}) != fingerprint(result)


def test_notes_of_no_row_and_damaged_notes_are_refused(folder: Path) -> None:
    lost = Notes([Note(TABLE.name, "cubic", "", frozenset())])
    with pytest.raises(ValueError, match="toy/losses has no row 'cubic'"):
        lost.bound_to(TABLES, RunStore(folder / "runs"))
    (folder / "notes.json").write_text(json.dumps([{"table": "x"}]))
    with pytest.raises(StoredRunError, match=r"notes\.json is damaged"):
        Notes.read(folder)
