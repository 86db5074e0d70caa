"""A tiny weather store, and recipes small enough for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from memory_source import CONSTANTS, MemorySource, Silent
from smoe_paper.atmosphere.fields import Grid
from smoe_paper.weather.commands import Preparation
from smoe_paper.weather.prepare import prepare
from smoe_paper.weather.recipes import WEATHER_RECIPES, WeatherData, WeatherRecipe, WeatherViTModel

# Even numbers of rows and columns, for the patches of a transformer.
GRID = Grid((-67.5, -22.5, 22.5, 67.5), (0.0, 60.0, 120.0, 180.0, 240.0, 300.0))
SOURCE = MemorySource(all_years=(2000, 2001, 2002), grid=GRID)


def make_store(path: Path) -> Path:
    """Three years of 5 channels and 3 constants every six hours; 10 days of the last."""
    prepare(SOURCE, path, Preparation((2000, 2002), (2000, 2000), SOURCE.names, CONSTANTS), Silent())
    return path


def tiny_recipe(name: str, store: Path | None, **changes: Any) -> WeatherRecipe:
    """A recipe with a network of a few filters, one day of starts in eight, and one epoch."""
    recipe = WEATHER_RECIPES[name]
    data = WeatherData(
        store,
        (2000, 2000),
        (2001, 2001),
        (2002, 2002),
        targets=("z_500", "t_850", "t2m"),
        start_every_hours=192,
        test_every_hours=24,
    )
    size = (
        {"width": 8, "num_heads": 2, "depth": 1, "hidden": 8}
        if isinstance(recipe.model, WeatherViTModel)
        else {"filters": 4, "num_blocks": 1, "dropout": 0.0}
    )
    model = replace(recipe.model, **size)  # type: ignore[arg-type]
    plan = replace(recipe.training, batch_size=4, max_epochs=1, device="cpu")
    return replace(recipe, **{"data": data, "model": model, "training": plan, **changes})
