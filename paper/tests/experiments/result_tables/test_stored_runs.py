"""Results are found by the full recipe that was trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from smoe.cli.main import main
from smoe.rules import Damping, EndToEnd
from smoe_paper.experiments.experiment import EXPERIMENTS, find_experiment, recipe_from_plain
from smoe_paper.experiments.recipe import Recipe
from smoe_paper.experiments.stored_runs import RunKey, RunStore, StoredRunError
from smoe_paper.experiments.tables import NOT_RUN, outcomes, page
from smoe_paper.heat.recipes import HeatRecipe, SpatialMoEModel


def store_run(store: RunStore, recipe: Recipe) -> RunKey:
    key = RunKey.of(recipe)
    store.write(key, {"recipe": recipe.plain(), "seed": recipe.seed, "test": {}})
    return key


def test_every_field_that_has_an_effect_makes_the_key() -> None:
    recipe = HeatRecipe()
    others = [
        replace(recipe, model=SpatialMoEModel(gate="conv")),
        replace(recipe, rule=EndToEnd()),
        replace(recipe, damping=Damping(0.2)),
        replace(recipe, optimizer=replace(recipe.optimizer, lr=2e-3)),
        replace(recipe, training=replace(recipe.training, batch_size=16)),
        replace(recipe, loss="mae"),
    ]
    assert len({RunKey.of(each).identity for each in (recipe, *others)}) == 1 + len(others)
    assert len({RunKey.of(each).digest for each in (recipe, *others)}) == 1 + len(others)


def test_where_and_how_fast_a_run_computes_does_not_matter() -> None:
    recipe = HeatRecipe()
    elsewhere = replace(
        recipe,
        training=replace(recipe.training, num_threads=1, device="cpu", evaluation_batch_size=7),
    )
    assert RunKey.of(recipe) == RunKey.of(elsewhere)


def test_a_number_is_the_same_as_1_and_as_1_0() -> None:
    # JSON does not tell them apart, and a flag such as `--optimizer.lr 1` gives an int.
    recipe = HeatRecipe()
    assert RunKey.of(recipe) == RunKey.of(replace(recipe, data=replace(recipe.data, unit=1)))


def test_results_are_found_again_by_seed(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs.jsonl")
    recipe, other = HeatRecipe(seed=10), HeatRecipe(loss="mae", seed=1)
    key = RunKey.of(recipe)
    assert key not in store.runs() and store.read_all_seeds(recipe) == []
    store_run(store, recipe)
    store_run(store, replace(recipe, seed=9))
    store_run(store, other)
    assert key in store.runs()
    assert [result["seed"] for result in store.read_all_seeds(recipe)] == [9, 10]
    assert [result["seed"] for result in RunStore(tmp_path / "runs.jsonl").read_all_seeds(other)] == [1]


def test_a_run_that_is_stored_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    store_run(RunStore(path), HeatRecipe())
    path.write_text(2 * path.read_text())
    with pytest.raises(StoredRunError, match=r"line 2 of .*runs\.jsonl holds a run that an earlier line holds"):
        RunStore(path).runs()


@pytest.mark.parametrize(("line", "message"), [('{"seed": ', "JSONDecodeError"), ('{"seed": 3}', "KeyError: 'recipe'")])
def test_a_damaged_result_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "runs.jsonl"
    store_run(RunStore(path), HeatRecipe())
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(
        StoredRunError, match=rf"line 2 of .*runs\.jsonl is not a stored run \({message}.*; remove the line"
    ):
        RunStore(path).read_all_seeds(HeatRecipe())


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
        text = (folder / f"{table.short_name}.md").read_text()
        assert text in printed, f"make it again: smoe reproduce {table.name}"
        # A row without a run says why.
        assert all(outcomes(tables, row, store) for row in table.rows) == (f"\n{NOT_RUN}" not in text), table.name


def test_the_page_of_the_papers_tables_is_not_stale() -> None:
    stores = [(find_experiment(name).tables, RunStore(RESULTS / name / "runs.jsonl")) for name in EXPERIMENTS]
    text = f"{page(stores)}\n{(RESULTS / 'text.md').read_text()}"
    assert (RESULTS / "tables.md").read_text() == text, "make it again: smoe reproduce page"
    assert "| yes | yes | 100.0 ± 0 | 100.0 ± 0 | reproduced | 10 | paper |" in text


@pytest.mark.parametrize("name", NAMES)
def test_every_note_has_its_table(name: str) -> None:
    headings = {line[2:] for line in (RESULTS / name / "notes.md").read_text().splitlines() if line.startswith("# ")}
    assert headings and headings <= {table.name for table in find_experiment(name).tables.tables}
