"""The cost of training a recipe on this machine: parameters, memory and time, from a few real steps."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import nn

from smoe.experiments.dry_task import DryTask
from smoe.experiments.dry_training import DryTraining
from smoe.experiments.recipe import Recipe
from smoe.experiments.registry import experiment_of
from smoe.nn import RoutedLayer, SpatialGate

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
class Cost:
    """The cost of training a recipe.

    Attributes:
        dry_task: Task that was measured.
        parameters: Numbers of parameters.
        weight_bytes: Bytes of parameters and buffers.
        gradient_bytes: Bytes of the gradients of parameters that learn.
        optimizer_bytes: Bytes of the optimiser's state after a step.
        activation_bytes: Bytes that the forward pass of a batch, or of a part of it, keeps for the backward pass.
        step_seconds: Seconds of a training step of the recipe's batch.
        validation_seconds: Seconds of the validation split, forward only.
        measured_batch_size: Size of the batches that were timed; the rest is in proportion.
    """

    dry_task: DryTask
    parameters: Parameters
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    step_seconds: float
    validation_seconds: float
    measured_batch_size: int

    @property
    def total_bytes(self) -> int:
        """Bytes that are needed at once, without the working space of single operations."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes + self.activation_bytes


def measure_cost(recipe: Recipe) -> Cost:
    """Trains a few steps on random data of the true shape.

    Steps of small batches come first, and larger ones while they are quick; the forward and backward passes of a whole
    batch are taken to be in proportion, the optimiser's step is not.
    """
    dry = experiment_of(recipe).build_dry(recipe)
    meter = _Meter(recipe, dry)
    first, second = meter.saved_bytes(1), meter.saved_bytes(2)
    batch_size = recipe.training.batch_size
    part_size = recipe.training.part_size or batch_size
    # What does not grow with the batch, such as the routing of a tensor gate, is kept once.
    activation_bytes = first + (second - first) * (part_size - 1)
    measured = 1
    passes, update = meter.step_seconds(measured)
    while measured < part_size and 2 * (passes + update) < _ENOUGH_SECONDS:
        measured = min(2 * measured, part_size)
        passes, update = meter.step_seconds(measured)
    forward = meter.forward_seconds(measured) / measured
    return Cost(
        dry,
        count_parts(dry.task.model),
        sum(_num_bytes(tensor) for tensor in (*dry.task.model.parameters(), *dry.task.model.buffers())),
        sum(_num_bytes(parameter) for parameter in dry.task.model.parameters() if parameter.requires_grad),
        meter.optimizer_bytes(),
        activation_bytes,
        passes * batch_size / measured + update,
        forward * dry.num_validation_samples,
        measured,
    )


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

    def saved_bytes(self, batch_size: int) -> int:
        """Bytes that a forward pass in training keeps for the backward pass, beside the parameters."""
        known = {parameter.untyped_storage().data_ptr() for parameter in self.model.parameters()}
        saved: dict[int, int] = {}

        def note(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known:
                saved[storage.data_ptr()] = storage.nbytes()
            return tensor

        self.model.train()
        input, target = self.training.batch(batch_size)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            loss = self.training.loss(input, target)
        del loss
        return sum(saved.values())

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

    def optimizer_bytes(self) -> int:
        """Bytes of the optimiser's state."""
        state = self.training.dry.task.optimizer.state.values()
        return sum(_num_bytes(value) for entry in state for value in entry.values() if isinstance(value, torch.Tensor))

    def _now(self) -> float:
        if self.training.accelerator.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def _identities(modules: object) -> set[int]:
    return {id(parameter) for module in modules for parameter in module.parameters()}  # type: ignore[attr-defined]


def _num_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
