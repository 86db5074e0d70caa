from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from smoe.rules import Frozen, RoutingClassification
from smoe_paper.cli.train import default_output_dir
from smoe_paper.experiments.experiment import all_recipes

RECIPE = all_recipes()["heat/smoe"]


def name(name: str = "heat/smoe", **changes: object) -> str:
    folder = default_output_dir(name, replace(RECIPE, **changes), RECIPE)  # type: ignore[arg-type]
    assert folder.parent == Path("runs")
    return folder.name


def test_recipe_and_seed() -> None:
    assert name() == "heat-smoe-0"
    assert name(seed=4) == "heat-smoe-4"
    assert name("own/recipe.py:SMALL", seed=4) == "recipe-4"


def test_what_differs_is_named() -> None:
    data = replace(RECIPE.data, num_train_runs=50, spatial_shape=(9, 7))
    assert name(data=data) == "heat-smoe-0-spatial_shape=9_7-num_train_runs=50"
    assert name(rule=RoutingClassification.paper()) == "heat-smoe-0-error_quantile=0.7-factor=0.1-error_quantile=0.7"
    assert name(rule=Frozen()) == "heat-smoe-0-rule=frozen"


def test_what_has_no_effect_is_not_named() -> None:
    assert name(data=replace(RECIPE.data, cache_dir=Path("elsewhere"))) == "heat-smoe-0"
    assert name(training=replace(RECIPE.training, num_threads=2, device="cpu")) == "heat-smoe-0"


def test_many_changes_have_a_short_name_of_their_own() -> None:
    texts = [name(init_from=Path("a/long/way/" * 20 + end)) for end in ("one", "two")]
    assert texts[0] != texts[1] and max(map(len, texts)) < 100
