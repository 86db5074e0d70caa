"""Trainings that are stopped and resumed, in one process or several: run by `tests/distributed/test_resume.py`.

Here and not in the test file: a spawned process imports it by name.
"""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from smoe import SpatialMoE2d, TensorGate
from smoe.errors import Interrupted
from smoe.training.loop import Loop
from smoe.training.plan import TrainingPlan
from smoe.training.run_directory import RunDirectory
from smoe.training.task import Task, leave_processes
from smoe_paper.baselines.routing_losses import ScoreGate
from smoe_paper.metrics import MeanSquaredError

BATCH_SIZE, NUM_BATCHES = 4, 60
PLAN = TrainingPlan(batch_size=BATCH_SIZE, max_epochs=2, device="cpu")


def make_task(*, noisy: bool) -> Task:
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(0)
    gate = TensorGate(3, 1, (6, 5))
    layer = SpatialMoE2d.from_experts(1, 3, 1, gate=ScoreGate(gate, std=0.5) if noisy else gate)

    def samples(number: int) -> TensorDataset:
        fields = torch.randn(2, number, 1, 6, 5, generator=generator)
        return TensorDataset(fields[0], fields[1])

    splits = {"train": samples(BATCH_SIZE * NUM_BATCHES), "validation": samples(9), "test": samples(9)}
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    return Task(layer, optimizer, F.mse_loss, [MeanSquaredError()], splits, default_collate, 0)  # type: ignore[arg-type]


def train(directory: Path, *, stop_after: int = 0, noisy: bool = False) -> tuple[int, int]:
    """Trains, or continues; returns the epoch and the batch that come next.

    Args:
        directory: Directory of the run.
        stop_after: Number of steps after which the last process receives SIGTERM; 0 for none.
        noisy: Draw random numbers in each step.
    """
    task = make_task(noisy=noisy)
    is_last = int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1
    num_left = stop_after

    def loss(prediction: Tensor, target: Tensor) -> Tensor:
        nonlocal num_left
        if prediction.requires_grad and is_last:
            num_left -= 1
            if num_left == 0:
                os.kill(os.getpid(), signal.SIGTERM)
        return F.mse_loss(prediction, target)

    task.loss = loss
    loop = Loop(task, PLAN, RunDirectory(directory))
    with suppress(Interrupted):
        loop.fit(resume=True)
    return loop.state.epoch, loop.state.next_batch


def run_process(rank: int, num_processes: int, port: int, directory: str) -> None:
    """What each of two processes does; the environment is that of a launcher."""
    join(rank, num_processes, port)
    folder = Path(directory)
    stop_and_resume(folder, "noisy")
    assert train(folder / "two-then-one", stop_after=30) == (1, 50)
    train(folder / "one-then-two")
    leave_processes()


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def join(rank: int, num_processes: int, port: int) -> None:
    """Sets the environment of a launcher."""
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), LOCAL_RANK=str(rank),
        WORLD_SIZE=str(num_processes), LOCAL_WORLD_SIZE=str(num_processes),
    )  # fmt: skip
    torch.set_num_threads(1)


def stop_and_resume(folder: Path, name: str) -> None:
    """Trains a run as a whole, and one that the last process is asked to stop."""
    train(folder / f"{name}-whole", noisy=True)
    # One process receives the signal at step 63; all stop at the next step where they agree.
    assert train(folder / f"{name}-stopped", stop_after=63, noisy=True) == (2, 25)
    # The random numbers of a new process are others.
    torch.manual_seed(12345)
    train(folder / f"{name}-stopped", noisy=True)
