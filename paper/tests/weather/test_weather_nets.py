"""Networks of weather forecasts and their training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from smoe import SpatialMoE2d, nn
from smoe.errors import DataError
from smoe.rules import RoutingClassification
from smoe.training.run_directory import RunDirectory
from smoe_paper.experiments.recipe import Adam
from smoe_paper.experiments.runs import open_run, train
from smoe_paper.experiments.task import Learning, build_optimizer, count_parameters
from smoe_paper.weather.model import Setting, build_model, build_task
from smoe_paper.weather.recipes import WEATHER_RECIPES, AddedSpatialMoEModel, SpatialMoEResNetModel, WeatherModel
from tiny_weather import make_store, tiny_recipe

LEARNING = Learning(RoutingClassification.released(), None)
PAPER_SHAPE = Setting(117, 3, (32, 64))
SMALL_SHAPE = Setting(6, 3, (4, 6))


def build_small(model: WeatherModel, land: torch.Tensor | None = None) -> torch.nn.Module:
    return build_model(model, LEARNING, replace(SMALL_SHAPE, land=land))


def moe_layers(model: torch.nn.Module) -> list[SpatialMoE2d]:
    return [module for module in model.modules() if isinstance(module, SpatialMoE2d)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("weather/rt", (6_355_587, 0)),
        ("weather/rt-wide", (23_917_827, 0)),
        # An added block: 256 experts of 128 x 9, 128 biases, 2 x 128 of batch normalisation; a gate of 256 x 32 x 64.
        ("weather/smoe-first", (6_355_587 + 294_912 + 128 + 256, 524_288)),
        ("weather/smoe-last", (6_355_587 + 294_912 + 128 + 256, 524_288)),
        # Each of 38 convolutions has 256 filters in place of 128, and its biases; all share one gate.
        ("weather/smoe", (6_355_587 + 38 * 128 * 128 * 9, 524_288)),
        ("weather/smoe-random", (6_355_587 + 38 * 128 * 128 * 9, 524_288)),
    ],
)
def test_parameters_of_the_paper(name: str, expected: tuple[int, int]) -> None:
    recipe = WEATHER_RECIPES[name]
    assert count_parameters(build_model(recipe.model, Learning.of(recipe), PAPER_SHAPE)) == expected


def test_only_3x3_convolutions_of_blocks_are_converted_and_one_gate_serves_all() -> None:
    model = build_small(SpatialMoEResNetModel(filters=4, num_blocks=3))
    layers = moe_layers(model)
    assert len(layers) == 6
    assert all(layer.gate is layers[0].gate for layer in layers)
    assert {(layer.gate.num_experts, layer.gate.num_selected) for layer in layers} == {(8, 4)}
    assert {layer.padding_mode for layer in layers} == {"longitude"}
    assert all(layer.bias is not None for layer in layers)
    unshared = moe_layers(build_small(SpatialMoEResNetModel(filters=4, num_blocks=3, share_gates=False)))
    assert len({id(layer.gate) for layer in unshared}) == 6


def test_the_prior_parts_land_and_sea() -> None:
    land = torch.zeros(4, 6)
    land[:, :2] = 1.0
    layer = moe_layers(build_small(SpatialMoEResNetModel(filters=4, num_blocks=1, prior="land_sea"), land))[0]
    chosen = layer.routing().indices
    assert (chosen[:, :, :2] >= 4).all()
    assert (chosen[:, :, 2:] < 4).all()
    with pytest.raises(ValueError, match="needs the fraction of land"):
        build_small(SpatialMoEResNetModel(filters=4, num_blocks=1, prior="land_sea"))


@pytest.mark.parametrize(("position", "numbers"), [("first", (8, 4)), ("last", (8, 4))])
def test_one_layer_is_added(position: Any, numbers: tuple[int, int]) -> None:
    plain = sum(parameter.numel() for parameter in build_small(tiny_recipe("weather/rt", None).model).parameters())
    model = build_small(AddedSpatialMoEModel(filters=4, num_blocks=1, position=position))
    (layer,) = moe_layers(model)
    assert (layer.gate.num_experts, layer.gate.num_selected) == numbers
    assert model(torch.randn(2, 6, 4, 6)).shape == (2, 3, 4, 6)
    added = layer.weight.numel() + layer.gate.num_selected + layer.gate.num_experts * 24
    norm = 2 * 4
    assert sum(parameter.numel() for parameter in model.parameters()) == plain + added + norm


def test_the_decay_is_kerass_penalty() -> None:
    torch.manual_seed(0)
    model = build_small(SpatialMoEResNetModel(filters=4, num_blocks=1))
    groups = {group["name"]: group for group in build_optimizer(model, Adam(l2=1e-2, gate_lr=0.5)).param_groups}
    kernels = {id(module.weight) for module in model.modules() if isinstance(module, (nn.GridConv2d, SpatialMoE2d))}
    assert {id(parameter) for parameter in groups["kernels"]["params"]} == kernels
    assert len(kernels) == 4
    assert groups["gates"]["lr"] == 0.5
    assert groups["others"]["lr"] == Adam().lr
    assert len(groups["gates"]["params"]) == 1
    # SGD's decay is Adam's: what it adds to a gradient must be that of l2 * sum(w^2).
    weight = groups["kernels"]["params"][0]
    penalty = 1e-2 * weight.square().sum()
    (expected,) = torch.autograd.grad(penalty, weight)
    before = weight.detach().clone()
    weight.grad = torch.zeros_like(weight)
    torch.optim.SGD([weight], lr=1.0, weight_decay=groups["kernels"]["weight_decay"]).step()
    torch.testing.assert_close(before - weight, expected)


# Those of a network of their own; the other rows differ in options.
QUICK = ("weather/smoe", "weather/lrlcn", "weather/vit")
ROWS = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in WEATHER_RECIPES]


def quietly(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("weather") / "store")


@pytest.mark.parametrize("name", ROWS)
def test_every_recipe_trains_and_is_opened_again(name: str, store: Path, tmp_path: Path) -> None:
    recipe = tiny_recipe(name, store)
    record = train(name, recipe, tmp_path / "run", notify=quietly)
    assert {"test/loss", "test/rmse_z_500", "test/rmse_t_850"} <= set(record)
    opened = open_run(tmp_path / "run", splits=("test",), notify=quietly, data={"store": store})
    assert opened.recipe == recipe
    assert opened.evaluate("test") == {
        key.removeprefix("test/"): value for key, value in record.items() if key.startswith("test/")
    }


def test_training_begins_with_the_best_weights_of_a_training_before(store: Path, tmp_path: Path) -> None:
    recipe = tiny_recipe("weather/rt", store, optimizer=Adam(lr=1e-2))
    recipe = replace(recipe, model=replace(recipe.model, dropout=0.1))  # type: ignore[arg-type]
    pretrained = replace(recipe, data=replace(recipe.data, pretrain_years=(2000, 2001), pretrain_lead_hours=24))
    before = pretrained.pretraining()
    assert before is not None and (before.data.lead_hours, before.data.train_years) == (24, (2000, 2000))
    train("x", recipe, tmp_path / "alone", notify=quietly)
    record = train("x", pretrained, tmp_path / "run", notify=quietly)
    alone, run = (RunDirectory(tmp_path / name).read_history()[0]["train/loss"] for name in ("alone", "run"))
    assert run < 0.9 * alone
    # Stopped after the training before, it goes on to the same weights.
    (tmp_path / "again").mkdir()
    (tmp_path / "run" / "pretraining").rename(tmp_path / "again" / "pretraining")
    assert train("x", pretrained, tmp_path / "again", resume=True, notify=quietly)["test/loss"] == record["test/loss"]
    with pytest.raises(ValueError, match="pretrain_years must be a first year and a later last one"):
        replace(recipe.data, pretrain_years=(2000, 2000))


def test_a_network_forecasts_the_difference_from_weekly_means(store: Path) -> None:
    recipe = tiny_recipe("weather/rt", store)
    task = build_task(replace(recipe, data=replace(recipe.data, weekly_means=True)), ("train",), quietly)
    input, _ = task.splits["train"].__getitems__([3])  # type: ignore[attr-defined]
    for parameter in task.model.parameters():
        torch.nn.init.zeros_(parameter)
    torch.testing.assert_close(task.model(input), input[:, -3:])


def test_a_batch_is_learned_by_heart(store: Path) -> None:
    recipe = tiny_recipe("weather/smoe", store, optimizer=Adam(lr=1e-2, l2=1e-5))
    task = build_task(replace(recipe, model=replace(recipe.model, filters=8)), ("train",), quietly)
    input, target = task.splits["train"].__getitems__(list(range(4)))  # type: ignore[attr-defined]
    losses = []
    for _ in range(60):
        loss = task.loss(task.model(input), target)
        loss.backward()
        task.optimizer.step()
        task.optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


def test_data_that_are_not_there(store: Path) -> None:
    with pytest.raises(DataError, match="make a store with `smoe data prepare weather`"):
        build_task(tiny_recipe("weather/rt", None), notify=quietly)
    recipe = tiny_recipe("weather/rt", store)
    said: list[str] = []
    build_task(replace(recipe, data=replace(recipe.data, train_years=(1999, 2000))), ("train",), said.append)
    assert said and "1999" in said[0]
