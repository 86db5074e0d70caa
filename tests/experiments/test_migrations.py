"""Recipes that earlier versions stored: found by the rows that made them, whatever the defaults are now."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from smoe.experiments.migrations import SCHEMA, SchemaError, migrate_recipe
from smoe.experiments.recipe import Recipe
from smoe.experiments.recipe_files import recipe_from_plain
from smoe.experiments.registry import find_experiment
from smoe.experiments.result_tables.stored_runs import RunKey, RunStore, StoredRunError
from smoe.paper.heat.recipes import HeatDiffusion, HeatRecipe
from smoe.rules import Frozen, Probing, RoutingClassification, StraightThrough

FOLDER = Path(__file__).parent / "version_1_runs"
# The row and the scale that trained each of these runs, which version 1 stored. Those of the weather and the images
# have the oldest form of the routing, with `rc_loss` and without a name of the rule.
RUNS = {
    "heat-auxiliary": ("heat/auxiliary", "yes, no, yes, no", "small"),
    "heat-straight-through": ("heat/rules", "three, straight-through", "small"),
    "heat-probe": ("heat/rules", "two of six, summed, probing", "paper"),
    "weather-frozen": ("weather/routing", "smooth, frozen, score", "small"),
    "weather-rc": ("weather/3-days", "SMoE, all 3 x 3", "small"),
    "images-smoe": ("images/mnist", "SMoE", "trial"),
    "ens10-frozen": ("ens10/routing", "smooth, frozen, score", "small"),
}


def read(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.json").read_text())


def recipe_of_row(name: str) -> Recipe:
    table_name, label, scale = RUNS[name]
    tables = find_experiment(table_name.partition("/")[0]).tables
    (table,) = tables.select(table_name)
    (row,) = (row for row in table.rows if row.label == label)
    return tables.scale(scale).recipe(row, seed=read(name)["seed"])


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_version_1_is_found_by_the_recipe_of_its_row(name: str, tmp_path: Path) -> None:
    old = read(name)
    assert "schema" not in old and "differences" in old
    (tmp_path / "any-name.json").write_text(json.dumps(old))
    store, recipe = RunStore(tmp_path), recipe_of_row(name)
    found = store.read(RunKey.of(recipe))
    assert found is not None and found["test"] == old["test"]
    assert store.read(RunKey.of(replace(recipe, seed=recipe.seed + 1))) is None
    # Every other field decides too.
    assert store.read(RunKey.of(replace(recipe, routing_warmup_epochs=3))) is None
    rebuilt = recipe_from_plain(old["recipe"], schema=1)
    assert RunKey.of(rebuilt) == RunKey.of(recipe) and type(rebuilt) is type(recipe)


def test_the_rules_are_what_was_trained() -> None:
    rules = {name: recipe_from_plain(read(name)["recipe"], schema=1).rule for name in RUNS}
    assert rules["heat-straight-through"] == StraightThrough(temperature=1.0, share=1.0, noise=0.0)
    assert rules["heat-probe"] == Probing(window=8, confidence=0.0)
    assert rules["weather-frozen"] == rules["ens10-frozen"] == Frozen()
    assert rules["weather-rc"] == RoutingClassification.paper()
    assert rules["images-smoe"] == RoutingClassification(error_quantile=0.7)
    # Without a gradient for the gate the first runs had the loss's own, and damped all the same.
    oldest = read("images-smoe")["recipe"]
    oldest["routing"] |= {"rc_loss": False, "damping": 0.25}
    recipe = recipe_from_plain(oldest, schema=1)
    assert recipe.rule.name == "end_to_end" and recipe.damping is not None
    assert (recipe.damping.factor, recipe.damping.error_quantile) == (0.25, 0.7)


def test_a_changed_default_never_relabels_a_stored_number(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The class of today has another default than when the run was stored: its recipe is another one now."""
    (tmp_path / "run.json").write_text((FOLDER / "heat-auxiliary.json").read_text())
    recipe = recipe_of_row("heat-auxiliary")
    assert RunStore(tmp_path).has(RunKey.of(recipe))
    for kind, field, value in ((HeatDiffusion, "num_steps", 50), (HeatRecipe, "loss", "mae")):
        defaults = dict(zip(kind.__init__.__code__.co_varnames[1:], kind.__init__.__defaults__ or (), strict=False))
        assert defaults[field] != value
        with monkeypatch.context() as patch:
            patch.setattr(kind.__init__, "__defaults__", tuple({**defaults, field: value}.values()))
            today = (
                HeatRecipe(auxiliary=recipe.auxiliary) if kind is HeatRecipe else replace(recipe, data=HeatDiffusion())
            )
            assert getattr(today if kind is HeatRecipe else today.data, field) == value
            assert not RunStore(tmp_path).has(RunKey.of(today))
            # What was stored is still what was trained.
            stored = recipe_from_plain(read("heat-auxiliary")["recipe"], schema=1)
            assert isinstance(stored, HeatRecipe)
            assert (stored.data.num_steps, stored.loss) == (100, "mse")


def test_a_newer_schema_is_refused_in_one_line(tmp_path: Path) -> None:
    plain = HeatRecipe().plain()
    with pytest.raises(SchemaError, match=rf"schema {SCHEMA + 1}, but this version reads 1 to {SCHEMA}: update smoe"):
        migrate_recipe(plain, SCHEMA + 1)
    (tmp_path / "new.json").write_text(json.dumps({"schema": SCHEMA + 1, "recipe": plain, "seed": 0, "test": {}}))
    with pytest.raises(StoredRunError, match=r"new\.json is not a stored run: .*update smoe") as error:
        RunStore(tmp_path).runs()
    assert "\n" not in str(error.value)


def test_migrating_leaves_what_is_given_and_the_current_schema_as_they_are() -> None:
    old = read("weather-frozen")["recipe"]
    copy = json.loads(json.dumps(old))
    migrate_recipe(old, 1)
    assert old == copy
    plain = HeatRecipe(seed=4).plain()
    assert migrate_recipe(plain, SCHEMA) == plain


def test_a_recipe_without_a_later_field_that_has_no_effect_is_completed() -> None:
    recipe = HeatRecipe()
    plain = recipe.plain()
    del plain["training"]["sharding"]
    assert recipe_from_plain(plain) == recipe
    sharded = replace(recipe, training=replace(recipe.training, sharding="full"))
    assert recipe_from_plain(sharded.plain()) == sharded
    assert RunKey.of(sharded) == RunKey.of(recipe)
