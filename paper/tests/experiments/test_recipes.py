"""Recipes as plain values: every value is checked against the type of its field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from smoe._json import RecipeError
from smoe_paper.experiments.experiment import all_recipes, recipe_from_plain
from smoe_paper.experiments.recipe import Adam
from smoe_paper.weather.recipes import SpatialMoEResNetModel, WeatherData

DELETE = object()


def changed(path: str, value: Any, name: str = "heat/smoe") -> dict[str, Any]:
    """The recipe as JSON would hold it, with one value replaced or deleted."""
    plain = json.loads(json.dumps(all_recipes()[name].plain()))
    *parents, last = path.split(".")
    place = plain
    for parent in parents:
        place = place[parent]
    if value is DELETE:
        del place[last]
    else:
        place[last] = value
    return plain


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        # Of another type.
        ("seed", "three", "seed must be a whole number, got 'three'"),
        ("seed", 1.5, "seed must be a whole number, got 1.5"),
        ("seed", True, "seed must be a whole number, got True"),
        ("optimizer.lr", "fast", "optimizer.lr must be a number, got 'fast'"),
        ("optimizer.lr", 10**400, "optimizer.lr must be a number, got 1000+[.][.][.]$"),
        ("loss", ["x" * 10_000], r"loss must be one of 'mse', 'mae', got \['x{95}[.][.][.]$"),
        ("data.spatial_shape", [64], "data.spatial_shape must have 2 values, got 1"),
        ("data.spatial_shape", 64, "data.spatial_shape must be a list, got 64"),
        ("data.diffusivities", [0.1, "x"], r"data.diffusivities\[1\] must be a number, got 'x'"),
        ("model.weighted", 1, "model.weighted must be true or false, got 1"),
        ("model.gate", "tenso", "model.gate must be one of 'tensor', 'factorised'.*got 'tenso'"),
        ("training", [], r"training must be a dictionary, got \[\]"),
        ("rule", "rc", "rule must be a dictionary, got 'rc'"),
        # Unknown.
        ("colour", "red", "HeatRecipe has no field 'colour'"),
        ("data.num_step", 3, "data has no field 'num_step'; did you mean 'num_steps'"),
        ("rule.windows", 3, "rule has no field 'windows'"),
        ("rule.type", "cr", "rule must be one of rc, .*frozen, got 'cr'"),
        ("model.type", "SpatialModel", "model must be one of SpatialMoEModel, .*got 'SpatialModel'"),
        ("optimizer.type", None, "optimizer must be one of Adam, got None"),
        # Missing.
        ("loss", DELETE, "HeatRecipe lacks the field 'loss'"),
        ("training.batch_size", DELETE, "training lacks the field 'batch_size'"),
        ("rule.damping.factor", DELETE, "rule.damping lacks the field 'factor'"),
        # Null.
        ("seed", None, "seed must not be null"),
        ("data", None, "data must not be null"),
        ("data.diffusivities", None, "data.diffusivities must not be null"),
        ("model.num_experts", None, "model.num_experts must not be null"),
        # Of the right type and out of range.
        ("optimizer.lr", -1.0, "optimizer: lr must not be negative, got -1"),
        ("rule.damping.factor", 3.0, r"rule.damping: factor must be in \[0, 1\], got 3"),
    ],
)
def test_a_wrong_value_is_refused_in_one_line_with_its_field(path: str, value: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as error:
        recipe_from_plain(changed(path, value))
    assert "\n" not in str(error.value)


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
