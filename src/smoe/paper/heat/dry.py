"""Makes the task of a heat recipe without its data, for estimates before a training."""

from __future__ import annotations

from smoe.experiments.dry_task import DryTask
from smoe.paper.heat.build import build_task, make_region_map
from smoe.paper.heat.recipes import HeatRecipe


def build_dry_task(recipe: HeatRecipe) -> DryTask:
    """Makes the task without simulating or reading fields."""
    data = recipe.data
    grid = make_region_map(data).shape
    field = (1, int(grid[0]), int(grid[1]))
    num_train, num_validation = (runs * data.num_steps for runs in (data.num_train_runs, data.num_validation_runs))
    task = build_task(recipe, ())
    return DryTask(task, field, field, num_train, num_validation, "simulated for the run")
