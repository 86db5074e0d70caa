from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from smoe.experiments.cost import count_parts, estimate_cost
from smoe.experiments.memory_prediction import predict_memory
from smoe.models import WeatherResNet
from smoe.paper.heat.recipes import HEAT_RECIPES, HeatDiffusion
from smoe.paper.weather.dry import build_dry_task
from smoe.paper.weather.recipes import WEATHER_RECIPES, WeatherData
from tiny_weather import make_store, tiny_recipe


def test_a_store_decides_the_shapes_and_the_samples(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    cost = estimate_cost(tiny_recipe("weather/smoe", store))
    dry = cost.dry_task
    assert dry.input_shape == (3 * 5 + 3, 4, 6)
    assert dry.target_shape == (3, 4, 6)
    # 366 days, every eight days from a multiple of eight days since 1970; the first and the last have no room.
    assert dry.num_train_samples == 45
    # Two layers of 8 experts, 4 x 9 each, with 4 biases; a gate of 8 x 4 x 6.
    assert (cost.parameters.experts, cost.parameters.gates) == (2 * (8 * 36 + 4), 192)
    memory, times = cost.memory, cost.times
    assert memory is not None and times is not None and cost.fits
    assert memory.weights >= 4 * cost.parameters.total
    assert memory.gradients == 4 * cost.parameters.total
    # Two averages of each parameter, and a counter.
    assert 2 * memory.gradients <= memory.optimizer < 2.1 * memory.gradients
    assert times.step > 0.0 and times.validation > 0.0
    assert times.batch_size == 4


def test_the_papers_shapes_need_no_store() -> None:
    recipe = WEATHER_RECIPES["weather/rt"]
    small = replace(recipe.model, filters=2, num_blocks=1)  # type: ignore[call-arg]
    dry = build_dry_task(replace(recipe, model=small))
    assert dry.input_shape == (117, 32, 64)
    # 37 years of 13,514 days; 24 hours are skipped, 12 before a start and 72 after it are needed.
    assert dry.num_train_samples == 13_514 * 24 - 24 - 12 - 72
    continuous = replace(recipe, model=small, data=WeatherData(continuous_lead_hours=(6, 120)))
    assert build_dry_task(continuous).input_shape == (118, 32, 64)


def test_activations_grow_with_the_batch(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    recipe = tiny_recipe("weather/rt", store)
    sizes = [
        predict_memory(replace(recipe, training=replace(recipe.training, batch_size=size))).memory.activations
        for size in (200, 400)
    ]
    assert 1.9 * sizes[0] < sizes[1] <= 2.1 * sizes[0]
    # At the least, what each of four convolutions sees is kept.
    assert sizes[0] >= 200 * 4 * 24 * (18 + 3 * 4)


def test_heat() -> None:
    data = HeatDiffusion(spatial_shape=(6, 5), num_train_runs=3, num_validation_runs=2, num_steps=10)
    cost = estimate_cost(replace(HEAT_RECIPES["heat/smoe"], data=data))
    assert (cost.dry_task.num_train_samples, cost.dry_task.num_validation_samples) == (30, 20)
    assert (cost.parameters.experts, cost.parameters.gates, cost.parameters.rest) == (27, 90, 0)


def test_a_network_without_experts_has_only_the_rest() -> None:
    model = WeatherResNet(3, 1, filters=2, num_blocks=1)
    parts = count_parts(model)
    assert parts.experts == parts.gates == 0
    assert parts.rest == parts.total == sum(parameter.numel() for parameter in model.parameters())
