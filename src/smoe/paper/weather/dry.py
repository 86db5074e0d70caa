"""Makes the task of a weather recipe without its data, for estimates before a training."""

from __future__ import annotations

import numpy as np

from smoe.experiments.dry_task import DryTask
from smoe.paper.weather.build import make_split, make_task
from smoe.paper.weather.recipes import WeatherData, WeatherRecipe
from smoe.paper.weather.setting import USUAL_GRID, open_store, setting_of, usual_setting


def build_dry_task(recipe: WeatherRecipe, grid: tuple[int, int] | None = None) -> DryTask:
    """Makes the task without reading fields.

    Args:
        recipe: Recipe.
        grid: Rows and columns of data that do not exist yet; None for those of the store, or the usual grid.
    """
    data = recipe.data
    if data.store is None or grid is not None:
        setting = usual_setting(data, grid)
        num_train = _count_starts(data, data.train_years, data.skip_hours)
        num_validation = _count_starts(data, data.validation_years, 0)
        where = USUAL_GRID if grid is None else f"{grid[0]} x {grid[1]} pixels"
        source = f"no store is read: the paper's channels at {where}, hourly"
    else:
        store = open_store(data)
        setting = setting_of(data, store)
        num_train, num_validation = (
            len(make_split(recipe, store, split, _ignore)) for split in ("train", "validation")
        )
        source = f"{data.store}: {len(store.channels)} channels at {store.grid.name}, every {store.step_hours} h"
    shape = setting.shape
    return DryTask(
        make_task(recipe, setting),
        (shape.in_channels, *shape.grid),
        (shape.out_channels, *shape.grid),
        num_train,
        num_validation,
        source,
    )


def _count_starts(data: WeatherData, years: tuple[int, int], skip_hours: int) -> int:
    """Returns the number of samples of complete years, hourly unless the recipe states otherwise."""
    first, last = (np.datetime64(f"{year:04d}-01-01", "h") for year in (years[0], years[1] + 1))
    lead = data.lead_hours if data.continuous_lead_hours is None else data.continuous_lead_hours[1]
    num_hours = int((last - first).astype(int)) - skip_hours - max(data.context_hours) - lead
    return max(num_hours // (data.start_every_hours or 1), 0)


def _ignore(_: str) -> None:
    pass
