from __future__ import annotations

import math
import shutil
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from small_training import PLAN, StopAfter, make_task, without_times
from smoe import SpatialMoE2d
from smoe.diagnostics import RoutingGain
from smoe.errors import Interrupted
from smoe.training.loop import Loop, TrainingDiverged
from smoe.training.plan import TrainingPlan
from smoe.training.progress import Reporter
from smoe.training.run_directory import (
    CheckpointError,
    Record,
    RunDirectory,
    RunError,
    load_checkpoint,
    save_checkpoint,
)
from smoe.training.task import Task
from smoe_paper.heat.data import HeatPairs
from smoe_paper.metrics import MeanSquaredError


def test_a_run_leaves_metrics_and_checkpoints(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    last = Loop(make_task(), PLAN, run).fit()
    history = run.read_history()
    assert [record["epoch"] for record in history] == [1, 2, 3, 4, 4]
    assert history[-1] == last
    assert "test/mse" in last and last["stopped"] == "4 epochs done"
    assert all("validation/within_1_percent" in record and "train/loss" in record for record in history[:-1])
    best = load_checkpoint(run.best_checkpoint)
    assert best["epoch"] == last["best_epoch"]


def test_test_metrics_are_those_of_the_best_weights(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    # The error falls, so that the largest one is that of the first epoch.
    trained = make_task()
    last = Loop(trained, replace(PLAN, monitor="mse", monitor_mode="max"), run).fit()
    assert last["best_epoch"] == 1
    best = load_checkpoint(run.best_checkpoint)["model"]
    assert all(torch.equal(value, best[name]) for name, value in trained.model.state_dict().items())
    task = make_task()
    task.model.load_state_dict(load_checkpoint(run.best_checkpoint)["model"])
    task.model.eval()
    input, target = task.splits["test"].__getitems__(list(range(7)))  # type: ignore[attr-defined]
    with torch.no_grad():
        mse = nn.functional.mse_loss(task.model(input), target)
    assert last["test/mse"] == pytest.approx(float(mse), rel=1e-6)


COSINE = replace(PLAN, schedule="cosine", warmup_epochs=1)


@pytest.mark.parametrize(
    ("num_steps", "number", "plan"), [(1, signal.SIGTERM, PLAN), (3, signal.SIGINT, PLAN), (8, signal.SIGTERM, COSINE)]
)
def test_a_resumed_run_is_bit_equal_to_one_never_stopped(
    tmp_path: Path, num_steps: int, number: int, plan: TrainingPlan
) -> None:
    whole, stopped = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "stopped")
    Loop(make_task(), plan, whole).fit()
    with pytest.raises(Interrupted) as caught:
        Loop(make_task(), plan, stopped, StopAfter(num_steps, number)).fit()
    assert caught.value.signal_number == number
    # As if the process had been killed after it wrote the record, and before it wrote the checkpoint.
    stopped.write_history([*stopped.read_history(), {"epoch": 2, "validation/mse": 0.0}])
    torch.manual_seed(12345)
    Loop(make_task(), plan, stopped).fit(resume=True)

    assert without_times(stopped.read_history()) == without_times(whole.read_history())
    # Eight ninths of the wave are behind the last of three steps of the last of three epochs.
    rate = 1e-2 * (1.0 + math.cos(math.pi * 8 / 9)) / 2.0 if plan is COSINE else 1e-2
    assert whole.read_history()[-2]["learning_rate"] == pytest.approx(rate)
    films = [
        {(epoch, gate): values.tolist() for epoch, frame in run.read_film().items() for gate, values in frame.items()}
        for run in (whole, stopped)
    ]
    assert films[0] == films[1] and {epoch for epoch, _ in films[0]} == {0, 1, 2, 3, 4}
    for name in ("best", "last"):
        ours = load_checkpoint(tmp_path / "stopped" / "checkpoints" / f"{name}.safetensors")
        theirs = load_checkpoint(tmp_path / "whole" / "checkpoints" / f"{name}.safetensors")
        for key, value in theirs["model"].items():
            assert torch.equal(ours["model"][key], value), (name, key)


class DrawnPairs(HeatPairs):
    """Inputs that are scaled by a factor of their epoch."""

    factor = 1.0

    def start_epoch(self, epoch: int) -> None:
        self.factor = 1.0 + epoch / 10

    def __getitems__(self, indices: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        input, target = super().__getitems__(indices)
        return self.factor * input, target


def test_workers_change_nothing_even_if_the_run_is_resumed_without_them(tmp_path: Path) -> None:
    def make_drawn_task() -> Task:
        task = make_task()
        frames = torch.rand(2, 8, 6, 5, generator=torch.Generator().manual_seed(8)).numpy()
        task.splits = {**task.splits, "train": DrawnPairs(frames)}
        return task

    plan, whole, stopped = replace(PLAN, max_epochs=2), RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "two")
    Loop(make_drawn_task(), plan, whole).fit()
    with pytest.raises(Interrupted):
        Loop(make_drawn_task(), replace(plan, num_workers=2), stopped, StopAfter(4)).fit()
    torch.manual_seed(12345)
    Loop(make_drawn_task(), replace(plan, num_workers=1), stopped).fit(resume=True)
    assert without_times(stopped.read_history()) == without_times(whole.read_history())
    theirs, ours = load_checkpoint(whole.last_checkpoint)["model"], load_checkpoint(stopped.last_checkpoint)["model"]
    assert all(torch.equal(ours[key], value) for key, value in theirs.items())


def test_resuming_a_finished_run_returns_its_record(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    first = Loop(make_task(), PLAN, run).fit()
    before, whole = run.last_checkpoint.read_bytes(), run.read_history()
    # As if the process had been killed between the checkpoint and metrics.jsonl.
    run.write_history(whole[:3])
    assert Loop(make_task(), PLAN, run).fit(resume=True) == first
    assert run.last_checkpoint.read_bytes() == before and run.read_history() == whole


def test_the_learning_rate_falls_on_a_plateau_and_the_run_stops(tmp_path: Path) -> None:
    plan = replace(PLAN, max_epochs=30, plateau_patience=1, early_stop_patience=6)
    task = make_task(lr=0.0)
    for parameter in task.model.parameters():
        parameter.requires_grad_(parameter.ndim == 4)
    Loop(task, plan, RunDirectory(tmp_path)).fit()
    history = RunDirectory(tmp_path).read_history()
    # Nothing ever improves on epoch 1, so the run ends 6 epochs later.
    assert [record["epoch"] for record in history] == [1, 2, 3, 4, 5, 6, 7, 7]
    assert history[-1]["stopped"] == "no improvement for 6 epochs"

    falling = make_task(lr=1.0)
    falling.metrics = [Worsening()]
    run = RunDirectory(tmp_path / "falling")
    Loop(falling, replace(plan, monitor="worse"), run).fit()
    rates = [record["learning_rate"] for record in run.read_history()[:-1]]
    # Patience 1: the second flat epoch in a row (the third of the run) lowers the rate for the next.
    assert rates == pytest.approx([1.0, 1.0, 1.0, 0.1, 0.1, 0.01, 0.01])


class Worsening(MeanSquaredError):
    """Falls from one evaluation to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.names: tuple[str, ...] = ("worse",)
        self.calls = 0

    def values(self, totals: torch.Tensor) -> dict[str, float]:
        self.calls += 1
        return {"worse": -float(self.calls)}


def test_stops_as_soon_as_nothing_is_left_to_learn(tmp_path: Path) -> None:
    last = Loop(make_task(), replace(PLAN, stop_at=0.0), RunDirectory(tmp_path)).fit()
    assert last["epoch"] == 1 and last["stopped"].startswith("within_1_percent reached")


def test_a_diverged_loss_ends_the_run_and_keeps_the_checkpoints(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    task = make_task()
    frames = torch.full((2, 8, 6, 5), torch.nan)
    task.splits = {**task.splits, "train": HeatPairs(frames.numpy())}
    with pytest.raises(TrainingDiverged, match="the loss became nan in epoch 1, by batch 3"):
        Loop(task, PLAN, run).fit()
    assert all(value.isfinite().all() for value in load_checkpoint(run.last_checkpoint)["model"].values())


def test_bf16_trains(tmp_path: Path) -> None:
    last = Loop(make_task(), replace(PLAN, precision="bf16", max_epochs=1), RunDirectory(tmp_path)).fit()
    assert last["test/mse"] > 0


def test_a_run_is_extended_as_if_it_had_been_longer_from_the_start(tmp_path: Path) -> None:
    long, short = RunDirectory(tmp_path / "long"), RunDirectory(tmp_path / "short")
    expected = Loop(make_task(), PLAN, long).fit()
    Loop(make_task(), replace(PLAN, max_epochs=2), short).fit()
    assert short.read_history()[-1]["stopped"] == "2 epochs done"
    torch.manual_seed(12345)
    last = Loop(make_task(), PLAN, short).fit(resume=True)
    assert without_times([last]) == without_times([expected])
    assert without_times(short.read_history()) == without_times(long.read_history())
    for name in ("best", "last"):
        ours, theirs = (load_checkpoint(run.checkpoints / f"{name}.safetensors")["model"] for run in (short, long))
        assert all(torch.equal(ours[key], value) for key, value in theirs.items()), name
    with pytest.raises(Interrupted):
        Loop(make_task(), PLAN, RunDirectory(tmp_path / "third"), StopAfter(11)).fit()
    with pytest.raises(RunError, match="has 3 epochs already, but max_epochs is 2"):
        Loop(make_task(), replace(PLAN, max_epochs=2), RunDirectory(tmp_path / "third")).fit(resume=True)


def test_a_misspelt_monitor_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"monitor is 'whitin_1_percent', .* did you mean 'within_1_percent'\?"):
        Loop(make_task(), replace(PLAN, monitor="whitin_1_percent"), RunDirectory(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_the_loss_can_be_monitored_without_a_metric(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    task = make_task()
    last = Loop(task, TrainingPlan(batch_size=4, max_epochs=2, device="cpu"), run).fit()
    # A mean-squared loss.
    assert last["test/loss"] == pytest.approx(last["test/mse"])
    assert [record["validation/loss"] for record in run.read_history()[:-1]] == pytest.approx(
        [record["validation/mse"] for record in run.read_history()[:-1]]
    )


def test_without_a_test_split_nothing_is_tested(tmp_path: Path) -> None:
    task = make_task()
    del task.splits["test"]  # type: ignore[attr-defined]
    last = Loop(task, PLAN, RunDirectory(tmp_path)).fit()
    assert not [key for key in last if key.startswith("test/")] and last["stopped"] == "4 epochs done"


def test_a_directory_that_vanishes_ends_the_run_in_one_line(tmp_path: Path) -> None:
    class Vanish(Reporter):
        def end_epoch(self, record: Record, *, is_best: bool) -> None:
            shutil.rmtree(tmp_path / "run")

    with pytest.raises(CheckpointError, match=r"best\.\w+ could not be written: No such file or directory; [^\n]*$"):
        Loop(make_task(), PLAN, RunDirectory(tmp_path / "run"), Vanish()).fit()
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_of_something_else_is_refused_in_one_line(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for state in ({"model": 3}, {"model": {}}, {}):
        save_checkpoint(run.last_checkpoint, state)
        with pytest.raises(CheckpointError, match=r"last\.safetensors is of another run or version: [^\n]*$"):
            Loop(make_task(), PLAN, run).fit(resume=True)


def test_the_last_record_says_what_the_routing_is_worth(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    Loop(make_task(), PLAN, run).fit()
    for record in run.read_history()[:-1]:
        assert 0.0 < record["routing/certainty"] < 1.0
        assert "routing_gains" not in record
    (gain,) = [RoutingGain.from_record(record) for record in run.read_history()[-1]["routing_gains"]]
    assert gain.num_samples == 4 and gain.loss > 0.0 and gain.loss_of_convolution > 0.0


def test_a_gate_that_does_not_learn_is_reported_once(tmp_path: Path) -> None:
    messages: list[str] = []

    class Notes(Reporter):
        def notify(self, text: str) -> None:
            messages.append(text)

    task, run = make_task(), RunDirectory(tmp_path)
    assert isinstance(task.model, SpatialMoE2d)
    task.optimizer = torch.optim.Adam([task.model.weight], lr=1e-2)
    Loop(task, replace(PLAN, max_epochs=5), run, Notes()).fit()
    dead = [text for text in messages if "has changed none of its choices since the start" in text]
    assert len(dead) == 1
    assert [("warnings" in record) for record in run.read_history()][:4] == [False, False, True, False]
