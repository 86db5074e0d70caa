"""The stored results of this repository: every run has its row, every table is fresh, every note has its table."""

from __future__ import annotations

from pathlib import Path

import pytest

from smoe.cli.main import main
from smoe_paper.experiments.experiment import EXPERIMENTS, find_experiment, recipe_from_plain
from smoe_paper.experiments.stored_runs import RunKey, RunStore
from smoe_paper.experiments.tables import outcomes, page

RESULTS = Path(__file__).parents[3] / "results"
NAMES = ("heat", "weather", "ens10", "images", "heat-mesh")


@pytest.mark.parametrize("name", NAMES)
def test_every_stored_run_belongs_to_a_row_and_its_recipe_can_be_rebuilt(name: str) -> None:
    tables, runs = find_experiment(name).tables, RunStore(RESULTS / name / "runs.jsonl").runs()
    of_rows = {
        RunKey.of(scale.recipe(row, 0)).identity
        for table in tables.tables
        for row in table.rows
        for scale in tables.scales
    }
    assert len(runs) >= 15
    for key, result in runs.items():
        assert key.identity in of_rows, key.name
        recipe = recipe_from_plain(result["recipe"])
        assert RunKey.of(recipe) == key and recipe.experiment == name


@pytest.mark.parametrize("name", NAMES)
def test_no_table_is_stale(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    folder, tables = RESULTS / name, find_experiment(name).tables
    monkeypatch.chdir(RESULTS.parents[1])
    assert main(["reproduce", name, "--dry-run"]) == 0
    printed, store = capsys.readouterr().out, RunStore(folder / "runs.jsonl")
    for table in tables.tables:
        path = folder / f"{table.short_name}.md"
        if not path.exists():
            assert not any(outcomes(tables, row, store) for row in table.rows), f"smoe reproduce {table.name}"
            continue
        assert path.read_text() in printed, f"make it again: smoe reproduce {table.name}"


def test_the_page_of_the_papers_tables_is_not_stale() -> None:
    stores = [(find_experiment(name).tables, RunStore(RESULTS / name / "runs.jsonl")) for name in EXPERIMENTS]
    text = page(stores)
    assert (RESULTS / "tables.md").read_text() == text, "make it again: smoe reproduce page"
    assert "| yes | yes | 100.0 ± 0 | 100.0 ± 0 | reproduced | 10 | paper |" in text


@pytest.mark.parametrize("name", [name for name in NAMES if (RESULTS / name / "notes.md").exists()])
def test_every_note_has_its_table(name: str) -> None:
    headings = {line[2:] for line in (RESULTS / name / "notes.md").read_text().splitlines() if line.startswith("# ")}
    assert headings and headings <= {table.name for table in find_experiment(name).tables.tables}
