"""The cost of training a recipe on this machine: parameters, predicted memory, and time from a few real steps."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import nn

from smoe.experiments.dry_task import DryTask
from smoe.experiments.dry_training import DryTraining
from smoe.experiments.memory_prediction import MemoryPrediction, PredictionError, predict_memory
from smoe.experiments.recipe import Recipe
from smoe.experiments.registry import experiment_of
from smoe.nn import RoutedLayer, SpatialGate
from smoe.training.live_memory import available_bytes

# Batches grow until a step takes this long, or is as large as the recipe's.
_ENOUGH_SECONDS = 4.0
_NUM_STEPS = 3


@dataclass(frozen=True)
class Parameters:
    """Numbers of parameters.

    Attributes:
        experts: Parameters of the experts of SMoE layers, biases included.
        gates: Parameters of the gates.
        rest: All other parameters.
    """

    experts: int
    gates: int
    rest: int

    @property
    def total(self) -> int:
        """All parameters."""
        return self.experts + self.gates + self.rest


@dataclass(frozen=True)
class StepTimes:
    """Seconds of training.

    Attributes:
        step: Seconds of a training step of the recipe's batch.
        validation: Seconds of the validation split, forward only.
        batch_size: Size of the batches that were timed; the rest is in proportion.
    """

    step: float
    validation: float
    batch_size: int


@dataclass(frozen=True)
class Cost:
    """The cost of training a recipe.

    Attributes:
        dry_task: Task that was measured.
        parameters: Numbers of parameters.
        memory: Predicted memory; None if it cannot be predicted.
        available: Bytes that the machine had left; None if it does not say.
        times: Measured times; None if the predicted memory is not available.
    """

    dry_task: DryTask
    parameters: Parameters
    memory: MemoryPrediction | None
    available: int | None
    times: StepTimes | None

    @property
    def fits(self) -> bool:
        """Whether the memory is available, as far as is known."""
        return fits(self.memory, self.available)


def fits(memory: MemoryPrediction | None, available: int | None) -> bool:
    """Whether training with this memory is possible, as far as is known.

    The process that asks holds the memory of a process already.
    """
    return memory is None or available is None or memory.total - memory.process <= available


def estimate_cost(recipe: Recipe, grid: tuple[int, int] | None = None) -> Cost:
    """Predicts the memory, and measures a few steps on random data of the true shape if they fit.

    Args:
        recipe: Recipe.
        grid: Rows and columns of the data, in place of those that the recipe would have.
    """
    available = available_bytes()
    try:
        predicted = predict_memory(recipe, grid)
    except PredictionError:
        dry, memory = _build(recipe, grid), None
    else:
        dry, memory = predicted.dry_task, predicted.memory
    parameters = count_parts(dry.task.model)
    times = None
    if fits(memory, available):
        dry = dry if memory is None else _build(recipe, grid)
        times = measure_times(recipe, dry)
    return Cost(dry, parameters, memory, available, times)


def _build(recipe: Recipe, grid: tuple[int, int] | None) -> DryTask:
    experiment = experiment_of(recipe)
    return experiment.build_dry(recipe) if grid is None else experiment.build_dry_on(recipe, grid)


def measure_times(recipe: Recipe, dry: DryTask) -> StepTimes:
    """Trains a few steps on random data of the true shape.

    Steps of small batches come first, and larger ones while they are quick; the forward and backward passes of a whole
    batch are taken to be in proportion, the optimiser's step is not.
    """
    meter = _Meter(recipe, dry)
    batch_size = recipe.training.batch_size
    part_size = recipe.training.part_size or batch_size
    measured = 1
    passes, update = meter.step_seconds(measured)
    while measured < part_size and 2 * (passes + update) < _ENOUGH_SECONDS:
        measured = min(2 * measured, part_size)
        passes, update = meter.step_seconds(measured)
    forward = meter.forward_seconds(measured) / measured
    return StepTimes(passes * batch_size / measured + update, forward * dry.num_validation_samples, measured)


def count_parts(model: nn.Module) -> Parameters:
    """Parameters by what they belong to, shared ones once, frozen ones included."""
    gates = _identities(module for module in model.modules() if isinstance(module, SpatialGate))
    experts = _identities(module for module in model.modules() if isinstance(module, RoutedLayer)) - gates
    numbers = {"experts": 0, "gates": 0, "rest": 0}
    for parameter in model.parameters():
        is_gate, is_expert = id(parameter) in gates, id(parameter) in experts
        numbers["gates" if is_gate else "experts" if is_expert else "rest"] += parameter.numel()
    return Parameters(**numbers)


class _Meter:
    """Measures steps of a task without data."""

    def __init__(self, recipe: Recipe, dry: DryTask) -> None:
        self.training = DryTraining(dry, recipe.training)
        self.model = self.training.model

    def step_seconds(self, batch_size: int) -> tuple[float, float]:
        """Seconds of forward and backward passes, and of the optimiser's step: the quickest after one to warm up."""
        self.model.train()
        input, target = self.training.batch(batch_size)
        passes, updates = [], []
        for _ in range(_NUM_STEPS):
            started = self._now()
            self.training.compute_gradients(input, target)
            between = self._now()
            self.training.update()
            passes.append(between - started)
            updates.append(self._now() - between)
        return min(passes[1:]), min(updates[1:])

    def forward_seconds(self, batch_size: int) -> float:
        """Seconds of a forward pass in evaluation."""
        self.model.eval()
        input, _ = self.training.batch(batch_size)
        times = []
        with torch.no_grad():
            for _ in range(2):
                started = self._now()
                self.model(input)
                times.append(self._now() - started)
        return times[-1]

    def _now(self) -> float:
        if self.training.accelerator.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def _identities(modules: object) -> set[int]:
    return {id(parameter) for module in modules for parameter in module.parameters()}  # type: ignore[attr-defined]
