from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from smoe.experiments.reproduction.stored_runs import RunKey, RunStore, StoredRunError, differences
from smoe.paper.heat.models import ConvNetModel, SpatialMoEModel
from smoe.paper.heat.recipes import HEAT_RECIPES, HeatRecipe


def test_only_differences_from_the_defaults_make_the_key() -> None:
    assert differences(HeatRecipe()) == {}
    recipe = HeatRecipe(model=SpatialMoEModel(gate="conv"))
    assert differences(recipe) == {"model": {"gate": "conv"}}
    assert differences(HEAT_RECIPES["heat/conv"]) == {"model": {"type": "ConvNetModel"}}
    assert differences(HeatRecipe(model=ConvNetModel("condconv", hidden=(3,)))) == {
        "model": {"type": "ConvNetModel", "layer": "condconv", "hidden": [3]}
    }


def test_where_and_how_fast_a_run_computes_does_not_matter() -> None:
    recipe = HeatRecipe()
    elsewhere = replace(
        recipe,
        data=replace(recipe.data, cache_dir=Path("data")),
        training=replace(recipe.training, num_threads=1, device="cpu", evaluation_batch_size=7),
    )
    assert RunKey.of(recipe) == RunKey.of(elsewhere)
    other = replace(recipe, training=replace(recipe.training, batch_size=16))
    assert RunKey.of(other).digest != RunKey.of(recipe).digest


def test_seeds_share_a_digest() -> None:
    first, second = RunKey.of(HeatRecipe(seed=0)), RunKey.of(HeatRecipe(seed=1))
    assert first.digest == second.digest and first != second


def test_the_key_of_the_headline_is_that_of_the_stored_runs() -> None:
    # If this fails, every stored run of the repository is forgotten.
    assert RunKey.of(HeatRecipe()).digest == "44136fa355b3"


def test_results_are_found_again_by_seed(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    key = RunKey("abc", 10)
    assert not store.has(key) and store.read(key) is None and store.read_all_seeds("abc") == []
    store.write(key, {"seed": 10})
    store.write(RunKey("abc", 9), {"seed": 9})
    store.write(RunKey("abcd", 1), {"seed": 1})
    assert store.has(key)
    assert [result["seed"] for result in store.read_all_seeds("abc")] == [9, 10]


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    (tmp_path / "abc-0.json").write_text('{"seed": ')
    with pytest.raises(StoredRunError, match=r"abc-0.json is damaged .* remove it"):
        store.read_all_seeds("abc")
