"""The tables of small images: the paper's numbers, rows at every scale, and what the command writes."""

from __future__ import annotations

from dataclasses import replace

from image_files import publish, write_idx_set
from smoe.rules import RoutingClassification
from smoe_paper.experiments.runs import plan_runs, train_run
from smoe_paper.experiments.stored_runs import RunKey, RunStore
from smoe_paper.experiments.tables import Scale, markdown
from smoe_paper.images.recipes import IMAGE_RECIPES, IMAGES, ImageRecipe, SpatialMoEClassifierModel


def test_the_papers_rows():
    table = IMAGES.tables.select("images/mnist")[0]
    paper = {row.label: row.paper[0].mean for row in table.rows if row.paper}
    assert paper["convolution"] == 98.86
    assert paper["SMoE"] == paper["SMoE, white noise, score order"] == 99.54
    assert len(paper) == 7
    assert [row.label for row in table.rows if not row.paper] == ["SMoE, defaults", "SMoE, defaults and local affine"]
    # Of Fashion-MNIST the paper says nothing.
    assert not any(row.paper for row in IMAGES.tables.select("images/fashion-mnist")[0].rows)


def test_the_papers_smoe():
    row = next(row for row in IMAGES.tables.select("images/cifar10")[0].rows if "white noise" in row.label)
    assert isinstance(row.recipe, ImageRecipe)
    assert row.recipe.model == SpatialMoEClassifierModel()
    assert row.recipe.rule == RoutingClassification.paper() and row.recipe.damping is None


def test_the_recipe_is_a_row_of_the_routing():
    # Measured once, shown in both tables.
    keys = {RunKey.of(row.recipe) for row in IMAGES.tables.select("images/routing")[0].rows}
    assert RunKey.of(IMAGE_RECIPES["mnist/smoe"]) in keys


def test_scales_are_equal_for_all():
    scale = IMAGES.tables.scale("mini")
    recipes = [scale.recipe(row, 0) for table in IMAGES.tables.tables for row in table.rows]
    budgets = {(recipe.data.images_per_epoch, recipe.training) for recipe in recipes}  # type: ignore[union-attr]
    assert len(budgets) == 1
    assert next(iter(budgets))[0] == 12_000


def test_a_table_from_nothing(tmp_path, monkeypatch):
    root = write_idx_set(tmp_path / "mnist", 100, 20)
    publish(monkeypatch, root)

    def shrink(recipe: ImageRecipe) -> ImageRecipe:
        training = replace(recipe.training, batch_size=20, evaluation_batch_size=20, max_epochs=1, device="cpu")
        return replace(recipe, model=replace(recipe.model, filters=4), training=training)

    experiment = replace(IMAGES.tables, scales=(Scale("tiny", "a test", shrink, kind="simulated"),))
    (table,) = experiment.select("images/mnist")
    store, runs_dir = RunStore(tmp_path / "runs.jsonl"), tmp_path / "runs"
    planned = plan_runs(experiment, [table], experiment.scales[0], 1, data=root, only="smoe")
    assert len(planned) == 1
    for run in planned:
        store.write(run.key, train_run(run, runs_dir) or {})
    text = markdown(experiment, table, store)
    assert text.count("| tiny |") == 1
