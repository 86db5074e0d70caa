from __future__ import annotations

from smoe.rules import Damping, RoutingClassification
from smoe_paper.heat.recipes import HEAT_RECIPES, SpatialMoEModel


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
