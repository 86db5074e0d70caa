"""The memory of training, predicted from shapes before anything is allocated.

A training step runs on the meta device, whose tensors have shapes and no memory, while the bytes of all tensors that
live at once are counted: parameters, gradients, what autograd keeps, and what single operations need. What tensors do
not show is added: the optimiser's state, the working memory of the C++ kernels, and the process itself.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from smoe.experiments.dry_task import DryTask
from smoe.experiments.recipe import Recipe
from smoe.experiments.registry import experiment_of
from smoe.ops.routed_conv.working_memory import kernel_bytes
from smoe.training.live_memory import LiveMemory, peak_bytes

# What a process holds on a system that does not say: interpreter, torch and this library.
_USUAL_PROCESS = 400_000_000
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class PredictionError(Exception):
    """The memory of a network cannot be predicted from shapes."""


@dataclass(frozen=True)
class MemoryPrediction:
    """Bytes of memory that training needs at once.

    Attributes:
        weights: Parameters and buffers.
        gradients: Gradients of parameters that learn.
        optimizer: State of the optimiser.
        activations: The largest sum of all other tensors within a step: batch, what is kept for the backward pass, and
            what single operations need.
        kernels: Working memory of the C++ kernels.
        process: The process before it has tensors.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    kernels: int
    process: int

    @property
    def total(self) -> int:
        """All of it, as the system counts the memory of the process; data sets held in memory come on top."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.kernels + self.process


class Passes(NamedTuple):
    """What is trained, made on the meta device.

    Attributes:
        model: Network.
        compute_loss: Makes a batch, or a part of it, and returns its loss.
        optimizer: Optimiser of the network; its class and numbers are used, not its state.
        num_parts: Number of parts of a batch, whose gradients are summed.
    """

    model: nn.Module
    compute_loss: Callable[[], torch.Tensor]
    optimizer: torch.optim.Optimizer
    num_parts: int = 1


@dataclass(frozen=True)
class DryPrediction:
    """What is known of a recipe before anything is allocated.

    Attributes:
        dry_task: The task, with tensors that have shapes only.
        memory: Memory of its training.
    """

    dry_task: DryTask
    memory: MemoryPrediction


def predict_memory(recipe: Recipe, grid: tuple[int, int] | None = None) -> DryPrediction:
    """The memory of training a recipe.

    Args:
        recipe: Recipe; neither its data nor its network are made.
        grid: Rows and columns of the data, in place of those that the recipe would have.

    Raises:
        PredictionError: If the network needs values of tensors to be made, as those on graphs do.
    """
    experiment = experiment_of(recipe)
    made: list[DryTask] = []

    def make() -> Passes:
        made.append(experiment.build_dry(recipe) if grid is None else experiment.build_dry_on(recipe, grid))
        return _passes_of(made[0], recipe)

    try:
        memory = predict_passes(make)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        if "meta" not in str(error):
            raise
        raise PredictionError("the network depends on values of its data, not only on shapes") from error
    return DryPrediction(made[0], memory)


def predict_passes(make: Callable[[], Passes]) -> MemoryPrediction:
    """The memory of a training step.

    Args:
        make: Makes what is trained; it is called with the meta device as the default.
    """
    live = LiveMemory()
    with torch.device("meta"), live:
        passes = make()
        model = passes.model.train()
        for _ in range(min(passes.num_parts, 2)):
            passes.compute_loss().backward()
        learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
        weights = sum(map(_num_bytes, (*model.parameters(), *model.buffers())))
        gradients = sum(map(_num_bytes, learning))
    per_byte = _of_optimizer(passes.optimizer)
    update = round(per_byte.working * max(map(_num_bytes, learning), default=0))
    activations = max(live.peak - weights - gradients, update, 0)
    kernels = kernel_bytes(live.operations)
    # Last, when everything is imported that training needs; tensors with shapes only take nothing. The peak, because a
    # system that is short of memory takes back the pages of libraries.
    process = peak_bytes() or _USUAL_PROCESS
    return MemoryPrediction(weights, gradients, round(per_byte.state * gradients), activations, kernels, process)


def _passes_of(dry: DryTask, recipe: Recipe) -> Passes:
    plan, task = recipe.training, dry.task
    part_size = plan.part_size or plan.batch_size
    dtype = _DTYPES.get(plan.precision)

    def compute_loss() -> torch.Tensor:
        input = torch.randn(part_size, *dry.input_shape)
        shape = (part_size, *dry.target_shape)
        target = torch.randn(shape) if dry.num_classes is None else torch.randint(dry.num_classes, shape)
        with nullcontext() if dtype is None else torch.autocast("cpu", dtype):
            loss = task.loss(task.model(input), target)
            return loss if task.auxiliary_loss is None else loss + task.auxiliary_loss(task.model)

    return Passes(task.model, compute_loss, task.optimizer, -(-plan.batch_size // part_size))


class _PerByte(NamedTuple):
    """Bytes of an optimiser for each byte of a parameter: its state, and what its step needs for one parameter."""

    state: float
    working: float


def _of_optimizer(optimizer: torch.optim.Optimizer) -> _PerByte:
    """Measured by a step for one small parameter: optimisers treat all numbers alike."""
    parameter = nn.Parameter(torch.zeros(1 << 16))
    parameter.grad = torch.ones_like(parameter)
    small = copy.copy(optimizer)
    small.param_groups = [{**optimizer.param_groups[0], "params": [parameter]}]
    small.state = defaultdict(dict)
    small.step()  # makes the state
    live = LiveMemory()
    with live:
        small.step()
    size = _num_bytes(parameter)
    state = sum(_num_bytes(value) for value in small.state[parameter].values() if isinstance(value, torch.Tensor))
    return _PerByte(state / size, live.peak / size)


def _num_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
