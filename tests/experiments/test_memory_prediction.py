"""The memory that is predicted from shapes, beside that of real tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import smoe
from smoe.cli.main import main
from smoe.experiments import cost
from smoe.experiments.gate_choices import predict_gates
from smoe.experiments.memory_prediction import Passes, predict_memory, predict_passes
from smoe.ops.routed_conv.working_memory import kernel_bytes
from smoe.paper.heat.recipes import HEAT_RECIPES
from smoe.paper.weather.recipes import WEATHER_RECIPES
from smoe.training.live_memory import LiveMemory, available_bytes, peak_bytes

GRID = (19, 23)
LAYERS = {
    "convolution": lambda: nn.Conv2d(8, 12, 3, padding=1),
    "default": lambda: smoe.SpatialMoE2d(8, 24, 12, spatial_shape=GRID),
    "coarse": lambda: smoe.SpatialMoE2d(8, 24, 12, gate=smoe.CoarseGate(24, 12, GRID)),
    "rc": lambda: smoe.SpatialMoE2d(8, 24, 12, spatial_shape=GRID, rule="rc"),
}


def make_passes(name: str) -> Passes:
    layer = LAYERS[name]()

    def compute_loss() -> torch.Tensor:
        return layer(torch.randn(4, 8, *GRID)).square().mean()

    return Passes(layer, compute_loss, torch.optim.Adam(layer.parameters()))


@pytest.mark.parametrize("name", LAYERS)
def test_tensors_take_what_was_predicted(name: str) -> None:
    predicted = predict_passes(lambda: make_passes(name))
    live = LiveMemory()
    with live:
        passes = make_passes(name)
        passes.compute_loss().backward()
        passes.optimizer.step()
    size = sum(parameter.numel() for parameter in passes.model.parameters())
    assert predicted.gradients == 4 * size
    assert predicted.weights >= predicted.gradients
    assert 8 * size <= predicted.optimizer <= 8 * size + 1000
    # The first step has no optimiser's state in its passes; kernels of few numbers differ in what they make.
    expected = live.peak
    found = predicted.weights + predicted.gradients + predicted.activations
    assert 0.9 * expected < found < 1.1 * expected


def test_tensors_are_counted_until_they_end() -> None:
    live = LiveMemory()
    with live:
        first = torch.zeros(1000)
        view = first[10:]
        second = torch.ones(500)
        assert live.current == 6000
        del first
        assert live.current == 6000  # the view keeps it
        del view, second
        assert live.current == 0
    assert live.peak == 6000


def test_a_prediction_allocates_nothing() -> None:
    before = peak_bytes()
    recipe = WEATHER_RECIPES["weather/smoe"]
    small = replace(recipe, model=replace(recipe.model, filters=64, num_blocks=1))  # type: ignore[call-arg]
    small = replace(small, training=replace(small.training, batch_size=1))
    found = predict_memory(small, grid=(721, 1440))
    assert found.memory.total > 5e9
    assert found.dry_task.input_shape == (117, 721, 1440)
    assert next(found.dry_task.task.model.parameters()).is_meta
    assert peak_bytes() - before < 3e8


def test_gates_with_fewer_parameters_need_less_on_large_grids() -> None:
    recipe = WEATHER_RECIPES["weather/smoe"]
    small = replace(recipe, model=replace(recipe.model, filters=32, num_blocks=1))  # type: ignore[call-arg]
    small = replace(small, training=replace(small.training, batch_size=1))
    found = predict_gates(small, grid=(361, 720))
    names = [name.split(",")[0] for name in found]
    assert sorted(names) == ["gate coarse", "gate factorised", "gate tensor"]
    totals = [memory.total for memory in found.values()]
    assert totals == sorted(totals, reverse=True)
    assert predict_gates(HEAT_RECIPES["heat/conv"]) == {}


def test_plans_of_the_kernels_are_kept_within_a_bound() -> None:
    one = ("routed_conv2d", (1, 8, 100, 100), (16, 8, 3, 3), (1, 8, 10_000))
    assert kernel_bytes([one]) - kernel_bytes([]) - 50_000_000 == 5 * 80_000
    many = [
        (name, input, weight, (1, 8, 10_000_000 + number)) for number in range(3) for name, input, weight, _ in [one]
    ]
    assert kernel_bytes(many) - 50_000_000 == 512 << 20
    # With many samples, and in tiny layers, nothing is sorted.
    assert kernel_bytes([("routed_conv2d", (64, 8, 100, 100), *one[2:])]) == 50_000_000
    assert kernel_bytes([("routed_conv2d", (1, 1, 9, 9), (3, 1, 3, 3), (1, 1, 81))]) == 0


def test_a_recipe_that_does_not_fit_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cost, "available_bytes", lambda: 1_000_000)
    monkeypatch.setattr(cost, "measure_times", lambda *_: pytest.fail("it was measured"))
    assert main(["plan", "mnist/smoe", "--training.batch-size", "2"]) == 0
    text = capsys.readouterr().out
    assert "1 MB are available" in text
    assert "a step      not measured: its memory is not available here" in text
    assert "gate factorised, order families, rule straight_through: " in text
    assert "does not fit" in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["weather/smoe", "--grid", "721"], "--grid needs rows and columns, such as 721x1440, got '721'"),
        (["heat/smoe", "--grid", "9x9"], "the grid of heat follows from the recipe"),
    ],
)
def test_a_wrong_grid_is_answered_in_a_line(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *args]) != 0
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_machine_says_what_is_available() -> None:
    available = available_bytes()
    assert available is None or available > 0
