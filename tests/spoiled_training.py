"""Trainings in which a value becomes infinite or NaN at some step, and a signal comes at the same time."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from smoe.metrics import MeanSquaredError
from smoe.training.checkpoints import load_checkpoint
from smoe.training.loop import Loop
from smoe.training.plan import TrainingPlan
from smoe.training.progress import SilentReporter
from smoe.training.run_directory import RunDirectory
from smoe.training.task import Task
from smoe_paper.heat.data import HeatPairs

# Ten batches: the loss is looked at after the last one only.
PLAN = TrainingPlan(
    batch_size=4, evaluation_batch_size=8, max_epochs=3, monitor="mse", monitor_mode="min", device="cpu", stop_at=None
)


def make_task(lr: float = 1e-2) -> Task:
    """A small net with batch normalisation, and a buffer that is not finite."""
    frames = torch.rand(3, 21, 6, 5, generator=torch.Generator().manual_seed(7)).numpy()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Conv2d(3, 1, 1))
    # A value that is not finite at the start, such as that of a mask, is no fault.
    model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    splits = {"train": HeatPairs(frames[:2]), "validation": HeatPairs(frames[2:]), "test": HeatPairs(frames[1:2])}
    return Task(model, optimizer, nn.functional.mse_loss, [MeanSquaredError()], splits, HeatPairs.collate, 0)


def tensors_of(state: Any) -> list[Tensor]:
    """All tensors of a checkpoint."""
    if isinstance(state, Tensor):
        return [state]
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, (list, tuple)) else ()
    return [tensor for part in parts for tensor in tensors_of(part)]


def assert_finite(run: RunDirectory) -> None:
    """Checks that everything in the checkpoints is finite."""
    for path in (run.last_checkpoint, run.best_checkpoint):
        if path.exists():
            stored = load_checkpoint(path)
            stored["model"].pop("mask")
            (stored.get("average") or {}).get("model", {}).pop("mask", None)
            assert all(tensor.isfinite().all() for tensor in tensors_of(stored) if tensor.is_floating_point())


def spoil_weights(loop: Loop, value: float) -> None:
    """One weight."""
    with torch.no_grad():
        next(loop.task.model.parameters()).view(-1)[3] = value


def spoil_moments(loop: Loop, value: float) -> None:
    """The state of the optimiser only."""
    state = next(iter(loop.task.optimizer.state.values()))
    state["exp_avg"].view(-1)[3] = value


def spoil_buffers(loop: Loop, value: float) -> None:
    """A running variance only."""
    dict(loop.task.model.named_buffers())["1.running_var"][1] = value


def spoil_average(loop: Loop, value: float) -> None:
    """The average of the weights only."""
    assert loop.average is not None
    with torch.no_grad():
        next(loop.average.model.parameters()).view(-1)[3] = value


class SpoilAt(SilentReporter):
    """Spoils a value after a step, and sends a signal after this step or a later one."""

    def __init__(self, spoil: Callable[[Loop, float], None], value: float, step: int, number: int | None) -> None:
        self.spoil, self.value, self.remaining, self.number = spoil, value, step, number
        self.loop: Loop | None = None

    def step(self, loss: float | None) -> None:
        self.remaining -= 1
        if self.remaining == 0:
            assert self.loop is not None
            self.spoil(self.loop, self.value)
            if self.number is not None:
                os.kill(os.getpid(), self.number)


SPOILS = (spoil_weights, spoil_moments, spoil_buffers, spoil_average)
