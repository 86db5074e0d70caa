"""Results are found by the full recipe that was trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from smoe.experiments.recipe import Recipe
from smoe.experiments.result_tables.stored_runs import RunKey, RunStore, StoredRunError
from smoe.paper.heat.model_options import SpatialMoEModel
from smoe.paper.heat.recipes import HeatRecipe
from smoe.rules import Damping, Probing


def store_run(store: RunStore, recipe: Recipe) -> RunKey:
    key = RunKey.of(recipe)
    store.write(key, {"recipe": recipe.plain(), "seed": recipe.seed, "test": {}})
    return key


def test_every_field_that_has_an_effect_makes_the_key() -> None:
    recipe = HeatRecipe()
    others = [
        replace(recipe, model=SpatialMoEModel(gate="conv")),
        replace(recipe, rule=Probing(window=4)),
        replace(recipe, damping=Damping(0.2)),
        replace(recipe, optimizer=replace(recipe.optimizer, lr=2e-3)),
        replace(recipe, training=replace(recipe.training, batch_size=16)),
        replace(recipe, routing_warmup_epochs=1),
        replace(recipe, init_from=Path("elsewhere")),
        replace(recipe, loss="mae"),
    ]
    assert len({RunKey.of(each).identity for each in (recipe, *others)}) == 1 + len(others)
    assert len({RunKey.of(each).digest for each in (recipe, *others)}) == 1 + len(others)


def test_where_and_how_fast_a_run_computes_does_not_matter() -> None:
    recipe = HeatRecipe()
    elsewhere = replace(
        recipe,
        data=replace(recipe.data, cache_dir=Path("data")),
        training=replace(recipe.training, num_threads=1, device="cpu", evaluation_batch_size=7),
    )
    assert RunKey.of(recipe) == RunKey.of(elsewhere)


def test_a_number_is_the_same_as_1_and_as_1_0() -> None:
    # JSON does not tell them apart, and a flag such as `--optimizer.lr 1` gives an int.
    recipe = HeatRecipe()
    assert RunKey.of(recipe) == RunKey.of(replace(recipe, data=replace(recipe.data, unit=1)))


def test_seeds_share_a_digest() -> None:
    first, second = RunKey.of(HeatRecipe(seed=0)), RunKey.of(HeatRecipe(seed=1))
    assert first.digest == second.digest and first != second


def test_results_are_found_again_by_seed(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    recipe, other = HeatRecipe(seed=10), HeatRecipe(loss="mae", seed=1)
    key = RunKey.of(recipe)
    assert not store.has(key) and store.read(key) is None and store.read_all_seeds(recipe) == []
    store_run(store, recipe)
    store_run(store, replace(recipe, seed=9))
    store_run(store, other)
    assert store.has(key)
    assert [result["seed"] for result in store.read_all_seeds(recipe)] == [9, 10]
    assert [result["seed"] for result in RunStore(tmp_path / "runs").read_all_seeds(other)] == [1]


def test_the_name_of_a_file_does_not_matter(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    key = store_run(store, HeatRecipe())
    (tmp_path / f"{key.name}.json").rename(tmp_path / "renamed.json")
    assert RunStore(tmp_path).has(key)
    assert not RunStore(tmp_path).has(RunKey.of(HeatRecipe(loss="mae")))
    # A file with the name of another run does not become that run.
    (tmp_path / "renamed.json").rename(tmp_path / f"{RunKey.of(HeatRecipe(loss='mae')).name}.json")
    assert not RunStore(tmp_path).has(RunKey.of(HeatRecipe(loss="mae")))


def test_two_files_of_one_run_are_refused(tmp_path: Path) -> None:
    key = store_run(RunStore(tmp_path), HeatRecipe())
    (tmp_path / "copy.json").write_text((tmp_path / f"{key.name}.json").read_text())
    with pytest.raises(StoredRunError, match=r"copy\.json .*hold the same run; remove one"):
        RunStore(tmp_path).runs()


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    (tmp_path / "abc-0.json").write_text('{"seed": ')
    with pytest.raises(StoredRunError, match=r"abc-0.json is damaged .* remove it"):
        store.read_all_seeds(HeatRecipe())
    (tmp_path / "abc-0.json").write_text('{"seed": 3}')
    with pytest.raises(StoredRunError, match=r"abc-0.json is not a stored run: KeyError: 'recipe'"):
        store.runs()
