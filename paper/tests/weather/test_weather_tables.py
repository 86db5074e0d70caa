from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from smoe.cli.main import main
from smoe_paper.experiments.recipe import Recipe
from smoe_paper.experiments.runs import plan_runs
from smoe_paper.experiments.stored_runs import RunKey, RunStore
from smoe_paper.experiments.tables import Row, Scale, markdown
from smoe_paper.experiments.task import Learning, build_optimizer
from smoe_paper.weather.model import Setting, build_model
from smoe_paper.weather.recipes import WEATHER
from smoe_paper.weather.scores import store_references
from tiny_weather import make_store, tiny_recipe
from weather_files import GRID

SMALL = WEATHER.tables.scale("small")
QUICK = ("SMoE, all 3 x 3", "ViT 2 x 2")
ROWS = [
    pytest.param(
        row,
        id=f"{table.name}: {row.label}",
        marks=[] if row.label in ("SMoE, all 3 x 3", "ViT 2 x 2") else pytest.mark.slow,
    )
    for table in WEATHER.tables.tables
    if table.name != "weather/5-days"
    for row in table.rows
]


@pytest.mark.parametrize("row", ROWS)
def test_every_row_takes_a_training_step_at_the_small_scale(row: Row) -> None:
    recipe = SMALL.recipe(row, seed=0)
    # Of the grid of the data, but with a batch and a network that take no time.
    size = {"width": 16, "depth": 1} if "ViT" in row.label else {"filters": 4, "num_blocks": 1}
    recipe = replace(recipe, model=replace(recipe.model, **size))  # type: ignore[arg-type]
    setting = Setting(11, 3, GRID.shape, GRID.latitude, torch.full(GRID.shape, 0.5))
    model = build_model(recipe.model, Learning.of(recipe), setting)
    optimizer = build_optimizer(model, recipe.optimizer)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    model(torch.randn(2, 11, *GRID.shape)).square().mean().backward()
    optimizer.step()
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_the_rows_are_distinct_recipes_and_say_what_the_paper_says() -> None:
    three_days, five_days, routing = WEATHER.tables.tables[:3]
    for scale in WEATHER.tables.scales:
        for table in WEATHER.tables.tables:
            keys = [RunKey.of(scale.recipe(row, 0)) for row in table.rows if row.can_run]
            assert len(set(keys)) == len(keys), table.name
    values = {row.label: [result.mean for result in row.paper] for row in three_days.rows}
    assert values["SMoE, all 3 x 3"] == [278, 1.69]
    assert [result.mean for result in five_days.rows[0].paper] == [563, 2.84]
    assert not any(row.paper for row in routing.rows)
    # The paper's own setting is trained once, for both tables.
    assert RunKey.of(three_days.rows[6].recipe) == RunKey.of(routing.rows[1].recipe)


def _result(recipe: Recipe, rmse: float) -> dict[str, Any]:
    return {
        "recipe": recipe.plain(),
        "seed": recipe.seed,
        "test": {"rmse_z_500": rmse, "rmse_t_850": rmse / 200},
        "parameters": 10,
        "gate_parameters": 5,
        "best_epoch": 2,
        "seconds": 3.0,
        "processor": "one",
        "torch": "2",
        "commit": "abc",
        "date": "today",
    }


def test_tables_show_untrained_forecasts_from_the_same_data(tmp_path: Path) -> None:
    data = make_store(tmp_path / "data")
    tiny = tiny_recipe("weather/rt", data)

    def shrink(recipe: Any) -> Any:
        return replace(recipe, data=replace(tiny.data, lead_hours=recipe.data.lead_hours))

    scale = Scale("tiny", "a toy", shrink, kind="simulated")
    store, table = RunStore(tmp_path / "runs.jsonl"), WEATHER.tables.tables[0]
    said: list[str] = []
    store_references([table], scale, data, store, said.append)
    assert len(said) == 1
    store_references([table], scale, data, store, said.append)
    assert len(said) == 1, "what is stored is not made again"
    store.write_reference("persistence-72h", {"label": "Persistence", "test": {}, "data": "of another atmosphere"})
    store_references([table], scale, data, store, said.append)
    assert len(said) == 2
    experiment = replace(WEATHER.tables, scales=(scale,))
    recipe = scale.recipe(table.rows[0], 0)
    store.write(RunKey.of(recipe), _result(recipe, 400.0))
    assert "| simulated | 1 | tiny, other data | 2 | 3 |" in markdown(experiment, table, store)
    mark = store.read_reference("persistence-72h") or {}
    store.write(RunKey.of(recipe), {**_result(recipe, 400.0), "data": mark["data"]})
    lines = markdown(experiment, table, store).splitlines()
    assert any(line.startswith("| Persistence | 0 |") for line in lines)
    assert any(line.startswith("| Weekly climatology | 0 |") for line in lines)
    assert "| R&T ResNet | 10+5 | 316 ± 2.4 | 400 | 1.80 ± 0.02 | 2.00 | simulated | 1 | tiny | 2 | 3 |" in lines
    planned = plan_runs(experiment, [table], scale, 1, data=data)
    assert all(run.recipe.data.store == data for run in planned)  # type: ignore[union-attr]


def test_a_missing_store_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "weather/3-days"]) == 2
    assert "--store" in capsys.readouterr().err
    assert main(["reproduce", "weather/7-days"]) == 2
    assert "weather/5-days" in capsys.readouterr().err
