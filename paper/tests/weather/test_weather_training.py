from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from smoe import SpatialMoE2d
from smoe.errors import DataError
from smoe_paper.experiments.recipe import Adam
from smoe_paper.experiments.runs import open_run, train
from smoe_paper.weather.model import build_task
from smoe_paper.weather.recipes import WEATHER_RECIPES
from tiny_weather import make_store, tiny_recipe

# Those of a network of their own; the other rows differ in options.
QUICK = ("weather/smoe", "weather/lrlcn", "weather/vit")
ROWS = [
    pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow)
    for name in WEATHER_RECIPES
    if not name.endswith("-rasp")
]


def moe_layers(model: torch.nn.Module) -> list[SpatialMoE2d]:
    return [module for module in model.modules() if isinstance(module, SpatialMoE2d)]


def quietly(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("weather") / "store")


@pytest.mark.parametrize("name", ROWS)
def test_every_recipe_trains_and_is_opened_again(name: str, store: Path, tmp_path: Path) -> None:
    recipe = tiny_recipe(name, store)
    record = train(name, recipe, tmp_path / "run", notify=quietly)
    assert {"test/loss", "test/rmse_z_500", "test/mae_t_850"} <= set(record)
    opened = open_run(tmp_path / "run", splits=("test",), notify=quietly, data={"store": store})
    assert opened.recipe == recipe
    assert opened.evaluate("test") == {
        key.removeprefix("test/"): value for key, value in record.items() if key.startswith("test/")
    }


def test_a_batch_is_learned_by_heart(store: Path) -> None:
    recipe = tiny_recipe("weather/smoe", store, optimizer=Adam(lr=1e-2, l2=1e-5))
    task = build_task(replace(recipe, model=replace(recipe.model, filters=8)), ("train",), quietly)
    input, target = task.splits["train"].__getitems__(list(range(4)))  # type: ignore[attr-defined]
    losses = []
    for _ in range(60):
        loss = task.loss(task.model(input), target)
        loss.backward()
        task.optimizer.step()
        task.optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


def test_data_that_are_not_there(store: Path) -> None:
    with pytest.raises(DataError, match="make a store with `smoe data prepare weather`"):
        build_task(tiny_recipe("weather/rt", None), notify=quietly)
    recipe = tiny_recipe("weather/rt", store)
    said: list[str] = []
    build_task(replace(recipe, data=replace(recipe.data, train_years=(1999, 2000))), ("train",), said.append)
    assert said and "1999" in said[0]
