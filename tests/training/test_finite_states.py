"""States that are not finite are never stored, whenever a stop comes, and the message about what is stored is true."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from smoe.training.loop import Loop, TrainingDiverged
from smoe.training.plan import TrainingPlan
from smoe.training.progress import Reporter
from smoe.training.run_directory import RunDirectory, load_checkpoint
from smoe.training.task import Task
from smoe_paper.heat.data import HeatPairs
from smoe_paper.metrics import MeanSquaredError

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


class SpoilAt(Reporter):
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


# In the middle of the first epoch, its last batch, the first batch of the second one and its last.
@pytest.mark.parametrize(
    ("spoil", "step", "number"),
    [
        (spoil_weights, 4, signal.SIGTERM),
        (spoil_weights, 10, None),
        (spoil_moments, 11, signal.SIGINT),
        (spoil_buffers, 20, None),
    ],
)
def test_what_is_not_finite_is_never_stored(
    tmp_path: Path, spoil: Callable[[Loop, float], None], step: int, number: int | None
) -> None:
    run = RunDirectory(tmp_path)
    value = float("nan") if step % 2 else float("inf")
    reporter = SpoilAt(spoil, value, step, number)
    loop = reporter.loop = Loop(make_task(), PLAN, run, reporter)
    with pytest.raises(TrainingDiverged, match=r"holds the state before epoch [12]; begin another run") as told:
        loop.fit()
    assert_finite(run)
    # The message is true: the run resumes from there, and equals one that nothing spoiled.
    said = re.search(r"before epoch (\d)", str(told.value))
    assert said is not None and load_checkpoint(run.last_checkpoint)["epoch"] == int(said[1])
    Loop(make_task(), PLAN, run).fit(resume=True)
    whole = RunDirectory(tmp_path / "whole")
    Loop(make_task(), PLAN, whole).fit()
    theirs, ours = load_checkpoint(whole.last_checkpoint)["model"], load_checkpoint(run.last_checkpoint)["model"]
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


def test_a_fit_in_a_temporary_folder_names_no_checkpoint() -> None:
    xr = pytest.importorskip("xarray")
    import smoe
    from gridded_files import regional

    del xr
    model = smoe.GridRegressor(
        net="layer", filters=2, max_epochs=2, learning_rate=1e30, device="cpu", progress=False, compare="no"
    )
    with pytest.raises(TrainingDiverged) as told:
        model.fit(regional(30, 4, 6, seed=1), regional(30, 4, 6, seed=2))
    assert "last.safetensors" not in str(told.value) and "lower learning rate" in str(told.value)
