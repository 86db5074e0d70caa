from __future__ import annotations

import json
from typing import Any

import pytest

from smoe_paper.experiments.experiment import all_recipes, recipe_from_plain
from smoe_paper.experiments.recipe import Adam
from smoe_paper.weather.recipes import WEATHER_RECIPES, SpatialMoEResNetModel, WeatherData


def test_the_two_ways_of_training_are_the_two_papers() -> None:
    smoe, rasp = WEATHER_RECIPES["weather/smoe"], WEATHER_RECIPES["weather/smoe-rasp"]
    assert smoe.model == rasp.model
    assert (smoe.optimizer.lr, smoe.training.batch_size, smoe.training.min_lr) == (1e-3, 64, 1e-6)
    assert (rasp.optimizer.lr, rasp.training.batch_size, rasp.training.min_lr) == (5e-5, 32, 1e-5)
    assert (rasp.training.plateau_factor, rasp.training.min_delta) == (0.2, 1e-4)
    assert smoe.training.early_stop_patience == rasp.training.early_stop_patience == 5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WeatherData(train_years=(2001, 2000)), "train_years must be the first and the last year"),
        (lambda: Adam(lr=-1.0), "lr must not be negative, got -1"),
        (lambda: SpatialMoEResNetModel(expert_ratio=0.5), "expert_ratio must be at least 1"),
        (lambda: SpatialMoEResNetModel(correlation_length=3.0), "belongs to gate_init='smooth'"),
    ],
)
def test_options_that_make_no_sense(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", list(all_recipes()))
def test_every_recipe_survives_json(name: str) -> None:
    recipe = all_recipes()[name]
    assert recipe_from_plain(json.loads(json.dumps(recipe.plain()))) == recipe
