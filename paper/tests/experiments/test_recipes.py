from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from smoe._plain import RecipeError, from_plain, to_plain
from smoe.rules import Damping, Probing, RoutingClassification
from smoe_paper.experiments.experiment import find_recipe
from smoe_paper.heat.recipes import HEAT_RECIPES, HeatDiffusion, HeatRecipe, SpatialMoEModel


def test_the_headline_recipe_is_the_paper_scale_one() -> None:
    recipe = HEAT_RECIPES["heat/smoe"]
    data = recipe.data
    assert data.spatial_shape == (64, 64) and data.diffusivities == (0.0025, 0.025, 0.25) and data.num_steps == 100
    assert (data.num_train_runs, data.train_seed) == (1000, 42)
    assert (data.num_validation_runs, data.validation_seed) == (20, 546981)
    assert (data.num_test_runs, data.test_seed) == (20, 865124)
    assert recipe.model == SpatialMoEModel(num_experts=3, num_selected=1, gate="tensor")
    damping = Damping(factor=0.0, error_quantile=0.3, tolerance=1e-3)
    assert recipe.rule == RoutingClassification(error_quantile=0.3, tolerance=1e-5, damping=damping)
    assert recipe.damping is None
    assert recipe.optimizer.lr == 1e-3 and recipe.training.batch_size == 32
    assert (recipe.training.plateau_patience, recipe.training.early_stop_patience) == (15, 30)


def test_a_recipe_survives_json() -> None:
    recipe = HeatRecipe(data=HeatDiffusion(region_map=Path("map.npy"), diffusivities=(0.1, 0.2)), seed=3)
    recipe = replace(recipe, rule=Probing(window=3), damping=Damping(0.2))
    assert from_plain(HeatRecipe, json.loads(json.dumps(to_plain(recipe)))) == recipe


def test_a_misspelt_recipe_gets_a_suggestion() -> None:
    with pytest.raises(RecipeError, match=r"no recipe named 'heat/smeo'; did you mean 'heat/smoe'\?"):
        find_recipe("heat/smeo")
