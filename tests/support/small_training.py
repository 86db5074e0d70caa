"""A small training, and signals in the middle of it."""

from __future__ import annotations

import os
import signal

import torch
from torch import nn

from smoe import SpatialMoE2d, TensorGate
from smoe.training.plan import TrainingPlan
from smoe.training.progress import Reporter
from smoe.training.run_directory import Record
from smoe.training.task import Task
from smoe_paper.baselines.routing_losses import ScoreGate
from smoe_paper.heat.data import HeatPairs
from smoe_paper.metrics import MeanSquaredError, PercentWithin

PLAN = TrainingPlan(
    batch_size=4, evaluation_batch_size=5, max_epochs=4, monitor="within_1_percent", monitor_mode="max", device="cpu"
)
TIMES = {"seconds", "total_seconds"}


def make_task(lr: float = 1e-2) -> Task:
    frames = torch.rand(3, 8, 6, 5, generator=torch.Generator().manual_seed(7)).numpy()
    torch.manual_seed(0)
    # Noise, so that a resumed run has to continue the random numbers too.
    layer = SpatialMoE2d.from_experts(1, 3, 1, gate=ScoreGate(TensorGate(3, 1, (6, 5))), rule="rc")
    optimizer = torch.optim.Adam(layer.parameters(), lr=lr)
    splits = {"train": HeatPairs(frames[:2]), "validation": HeatPairs(frames[2:]), "test": HeatPairs(frames[1:2])}
    metrics = [PercentWithin(), MeanSquaredError()]
    return Task(layer, optimizer, nn.functional.mse_loss, metrics, splits, HeatPairs.collate, 0)


def without_times(history: list[Record]) -> list[Record]:
    return [{key: value for key, value in record.items() if key not in TIMES} for record in history]


class StopAfter(Reporter):
    """Sends this process a signal after so many steps."""

    def __init__(self, num_steps: int, number: int = signal.SIGTERM) -> None:
        self.remaining, self.number = num_steps, number

    def step(self, loss: float | None) -> None:
        self.remaining -= 1
        if self.remaining == 0:
            os.kill(os.getpid(), self.number)
