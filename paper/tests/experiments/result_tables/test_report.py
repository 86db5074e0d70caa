from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from smoe_paper.experiments.recipe import Recipe
from smoe_paper.experiments.runs import plan_runs
from smoe_paper.experiments.stored_runs import RunKey, RunStore
from smoe_paper.experiments.tables import (
    PublishedResult,
    ResultTable,
    Row,
    Scale,
    ShownMetric,
    TableSet,
    markdown,
    outcomes,
    page,
    percent,
)
from smoe_paper.heat.pictures import draw_tables
from smoe_paper.heat.recipes import HeatRecipe, heat_result
from smoe_paper.heat.tables import HEAT, grid_recipe


def small(recipe: Any) -> HeatRecipe:
    return replace(recipe, data=replace(recipe.data, num_train_runs=3))


CONV = Row(("conv", "no"), HeatRecipe(seed=0), (heat_result(91.3, 0.2, 102),))
OTHER = Row(("other", "yes"), grid_recipe(0.5, None), (heat_result(90.0, 0.1),))
TABLE = ResultTable("toy/first", "A toy", ("model", "on"), (CONV, OTHER), "Table 1", "All of it.")
TOY = TableSet(
    "toy",
    (ShownMetric("within_1_percent", is_percentage=True),),
    "Percent.",
    (TABLE,),
    (Scale("paper", "all", lambda x: x), Scale("small", "few", small, "smaller")),
)


def store_run(store: RunStore, recipe: Recipe, value: float | None, **more: Any) -> None:
    result = {"recipe": recipe.plain(), "seed": recipe.seed, **results(value), **more}
    store.write(RunKey.of(recipe), result)


def results(value: float | None) -> dict[str, Any]:
    test = {} if value is None else {"within_1_percent": value}
    return {
        "test": test,
        "parameters": 27,
        "gate_parameters": 12,
        "best_epoch": 4,
        "seconds": 10.4,
        "validation": [1.0, 2.0],
        "processor": "one",
        "torch": "2",
        "commit": "abc",
        "date": "today",
    }


def test_means_and_spreads_stand_beside_the_papers(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs.jsonl")
    for seed, value in enumerate((91.0, 91.2, 91.7)):
        store_run(store, replace(CONV.recipe, seed=seed), value)
    store_run(store, small(CONV.recipe), 80.0, best_epoch=9)
    lines = markdown(TOY, TABLE, store).splitlines()
    # The mean of 91.0, 91.2, 91.7 is 91.3; the squares of the deviations sum to 0.26, halved 0.13, the root is 0.36.
    assert "| conv | no | 27+12 | 91.3 ± 0.2 | 91.3 ± 0.4 | reproduced | 3 | paper | 102 | 4 | 10 |" in lines
    assert "| conv | no | 27+12 | 91.3 ± 0.2 | 80.0 | smaller | 1 | small | 102 | 9 | 10 |" in lines
    assert "| other | yes |  | 90.0 ± 0.1 | not run | not run | 0 |  |  |  |  |" in lines
    assert "- one, torch 2, commit abc, today" in lines and "All of it." in lines
    command = 'smoe reproduce toy/first --scale paper --seeds 1 --rows "ROW"'
    assert f"Their command: `{command}`, where ROW is `other`." in lines


def test_a_difference_is_named_and_notes_follow(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs.jsonl")
    store_run(store, OTHER.recipe, 90.4)
    assert "| 90.0 ± 0.1 | 90.4 | differs | 1 | paper |" in markdown(TOY, TABLE, store)
    notes = "# toy/none\n\nElsewhere.\n\n# toy/first\n\n- other, yes: because\n\nOne.\n\n- Two.\n"
    (tmp_path / "notes.md").write_text(notes)
    text = markdown(TOY, TABLE, store)
    assert "\n- other, yes: because\n\nAll of it.\n\nOne.\n\n- Two.\n" in text
    assert "Elsewhere" not in text


def test_seeds_that_disagree_reproduce_nothing(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs.jsonl")
    for seed, value in enumerate((91.3, 91.3, 87.3)):
        store_run(store, replace(CONV.recipe, seed=seed), value)
    # 1.3 below the paper's mean, with a standard deviation of 2.3.
    assert "| 91.3 ± 0.2 | 90.0 ± 2.3 | differs | 3 | paper |" in markdown(TOY, TABLE, store)


def test_the_page_has_the_columns_that_the_paper_prints_and_no_row_of_ours_without_a_run(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs.jsonl")
    sized = replace(OTHER, paper=(heat_result(90.0, 0.1, parameters="146"),))
    ours, beyond = Row(("ours", "no"), small(OTHER.recipe)), replace(CONV, labels=("beyond", "no"), can_run=False)
    table = replace(TABLE, rows=(sized, ours, beyond))
    store_run(store, CONV.recipe, 91.3)
    tables = replace(TOY, tables=(table,))
    text = page([(tables, store)])
    ends = "is | seeds | scale | parameters: paper | parameters: here | epochs: paper | epochs: here |"
    assert f"| model | on | paper | here | {ends}" in text
    assert "| other | yes | 90.0 ± 0.1 | not run | not run | 0 |  | 146 |  |  |  |" in text
    # Needs other data than the stored run of its recipe had.
    assert "| beyond | no | 91.3 ± 0.2 | not run | not run | 0 |  |  |  | 102 |  |" in text
    assert "| ours |" not in text
    assert [run.label for run in plan_runs(tables, (table,), TOY.scales[0], 1, data=tmp_path)] == [
        "toy/first: other, yes, paper, seed 0",
        "toy/first: ours, no, paper, seed 0",
    ]
    store_run(store, sized.recipe, 90.0)
    assert "| other | yes | 90.0 ± 0.1 | 90.0 | reproduced | 1 | paper | 146 | 27+12 |  | 4 |" in page(
        [(tables, store)]
    )
    assert "| other | yes | 146 | 27+12 | 90.0 ± 0.1 | 90.0 |" in markdown(tables, table, store)


def test_diverged_runs_are_counted(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs.jsonl")
    store_run(store, CONV.recipe, None)
    assert "| diverged | differs | 1 |" in markdown(TOY, TABLE, store)
    store_run(store, replace(CONV.recipe, seed=1), 91.0)
    assert "| 91.0 (1 diverged) | differs | 2 |" in markdown(TOY, TABLE, store)
    assert outcomes(TOY, CONV, store)[0].values("within_1_percent") == [91.0]


@pytest.mark.parametrize(
    ("mean", "spread", "text"),
    [
        (91.25, 0.2, "91.2 ± 0.2"),
        (100.0, 0.0, "100.0 ± 0"),
        (99.99997, None, "99.99997"),
        (99.96, 0.004, "99.96 ± 0.004"),
        (99.94, None, "99.9"),
    ],
)
def test_100_means_all_of_it(mean: float, spread: float | None, text: str) -> None:
    assert percent(mean, spread) == text


def test_runs_are_planned_once_and_by_seed(tmp_path: Path) -> None:
    twice = (TABLE, replace(TABLE, name="toy/second", rows=(OTHER,)))
    planned = plan_runs(TOY, twice, TOY.scales[1], 2, data=tmp_path)
    assert [run.recipe.seed for run in planned] == [0, 0, 1, 1]
    assert planned[0].label == "toy/first: conv, no, small, seed 0"
    for run in planned:
        assert isinstance(run.recipe, HeatRecipe)
        assert run.recipe.data.num_train_runs == 3
    assert len(plan_runs(TOY, twice, TOY.scales[1], 2, data=tmp_path, only="OTHER")) == 2
    assert not plan_runs(TOY, twice, TOY.scales[1], 2, data=tmp_path, only="oth")


def test_figures_are_drawn_of_what_is_stored(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs.jsonl")
    assert draw_tables(HEAT.tables.tables, store, tmp_path, tmp_path, tmp_path) == []
    main = HEAT.tables.select("heat/main")[0]
    for row in main.rows[:3]:
        store_run(store, row.recipe, 91.0)
    pictures = draw_tables(HEAT.tables.tables, store, tmp_path, tmp_path, tmp_path)
    assert [picture.name for picture in pictures] == ["accuracy.png"]
    assert all(picture.stat().st_size > 10_000 for picture in pictures)


def test_several_metrics_and_forecasts_that_are_not_trained(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs.jsonl")
    row = Row(("net",), HeatRecipe(), (PublishedResult("rmse_z", 316.0, 2.4, None, "Table 3"),))
    references = ("persistence", "climatology")
    table = ResultTable("toy/weather", "A toy", ("model",), (row,), "Table 3", references=references)
    metrics = (ShownMetric("rmse_z", "Z500", decimals=0), ShownMetric("rmse_t", "T850", decimals=2))
    scale = Scale("small", "few", lambda x: x, kind="simulated")
    tables = TableSet("toy", metrics, "RMSE.", (table,), (scale,))
    store.write_reference("persistence", {"label": "Persistence", "test": {"rmse_z": 936.4, "rmse_t": 4.294}})
    for seed in range(2):
        test = {"rmse_z": 300.0 + 10 * seed, "rmse_t": 1.5}
        store_run(store, replace(row.recipe, seed=seed), None, test=test)
    lines = markdown(tables, table, store).splitlines()
    head = "| model | parameters | Z500: paper | Z500: here | T850: here | is | seeds | scale | epochs | s per run |"
    assert lines[4] == head
    assert "| Persistence | 0 |  | 936 | 4.29 |  |  |  |  |  |" in lines
    # Two values 5 above and below their mean: the standard deviation is the root of 50, 7.07.
    assert "| net | 27+12 | 316 ± 2.4 | 305 ± 7 | 1.50 ± 0.00 | simulated | 2 | small | 4 | 10 |" in lines
    store.write_reference("persistence", {"label": "Persistence", "test": {}, "data": "of today"})
    assert "| simulated | 2 | small, other data | 4 | 10 |" in markdown(tables, table, store)
    assert "| simulated | 2 | small, other data |" in page([(tables, store)])
