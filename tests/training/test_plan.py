from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from smoe.training.loop import CosineSchedule, make_schedule
from smoe.training.plan import Stopping, TrainingPlan
from smoe.training.progress import BarReporter, ProgressBar

PLAN = TrainingPlan(early_stop_patience=3, max_epochs=10, monitor="within_1_percent", monitor_mode="max")


def test_the_best_value_is_strictly_better_and_finite() -> None:
    stopping = Stopping(PLAN)
    values = [math.nan, 50.0, 50.0, 51.0, 49.0, math.nan]
    found = [stopping.observe(epoch, value) for epoch, value in enumerate(values, 1)]
    assert found == [False, True, False, True, False, False]
    assert (stopping.best, stopping.best_epoch) == (51.0, 4)
    falling = Stopping(replace(PLAN, monitor_mode="min"))
    assert falling.observe(1, 2.0) and falling.observe(2, 1.0) and not falling.observe(3, 1.5)


def test_a_run_stops_after_the_patience_at_a_value_or_at_the_last_epoch() -> None:
    stopping = Stopping(PLAN)
    stopping.observe(2, 50.0)
    assert stopping.reason(4) is None and stopping.reason(5) == "no improvement for 3 epochs"
    stopping = Stopping(replace(PLAN, stop_at=100.0))
    stopping.observe(1, 99.9999)
    assert stopping.reason(1) is None
    stopping.observe(2, 100.0)
    assert stopping.reason(2) == "within_1_percent reached 100"
    stopping = Stopping(PLAN)
    stopping.observe(10, 1.0)
    assert stopping.reason(10) == "10 epochs done"
    assert Stopping(replace(PLAN, max_epochs=1)).reason(1) == "1 epoch done"


def test_refuses_numbers_that_make_no_plan() -> None:
    too_small = {"batch_size": 0, "max_epochs": 0, "plateau_patience": -1, "num_threads": 0, "num_workers": -1}
    for name, value in (*too_small.items(), ("plateau_factor", 1.0), ("min_delta", math.nan)):
        with pytest.raises(ValueError, match=rf"{name} must .* got {value}"):
            TrainingPlan(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="warmup_epochs belongs to schedule='cosine', but schedule is 'plateau'"):
        TrainingPlan(warmup_epochs=3)
    with pytest.raises(ValueError, match="warmup_epochs must be below max_epochs, 3, got 3"):
        TrainingPlan(schedule="cosine", warmup_epochs=3, max_epochs=3)
    with pytest.raises(ValueError, match="warmup_start must be above 0 and at most 1, got 0"):
        TrainingPlan(schedule="cosine", warmup_start=0.0)


@pytest.mark.parametrize(("mode", "values"), [("max", [1.0, 1.05, 1.2]), ("min", [1.0, 0.95, 0.8])])
def test_a_change_within_the_margin_is_no_improvement(mode: str, values: list[float]) -> None:
    stopping = Stopping(replace(PLAN, monitor_mode=mode, min_delta=0.1))  # type: ignore[arg-type]
    assert [stopping.observe(epoch, value) for epoch, value in enumerate(values, 1)] == [True, False, True]


def learning_rates(plan: TrainingPlan, values: list[float], lrs: tuple[float, ...] = (1e-3,)) -> list[list[float]]:
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": lr} for lr in lrs]
    optimizer = torch.optim.Adam(groups)
    scheduler = make_schedule(optimizer, plan)
    assert not isinstance(scheduler, CosineSchedule)
    seen = []
    for value in values:
        optimizer.step()
        scheduler.step(value)
        seen.append([group["lr"] for group in optimizer.param_groups])
    return seen


def test_the_learning_rate_of_every_group_falls_to_the_floor() -> None:
    plan = TrainingPlan(monitor_mode="min", plateau_patience=0, plateau_factor=0.1, min_lr=1e-5)
    seen = learning_rates(plan, [1.0] * 4, lrs=(1e-3, 1e-2))
    torch.testing.assert_close(torch.tensor(seen[-1]), torch.tensor([1e-5, 1e-5]))
    torch.testing.assert_close(torch.tensor(seen[1]), torch.tensor([1e-4, 1e-3]))


def test_the_margin_of_an_improvement_is_absolute() -> None:
    plan = TrainingPlan(monitor_mode="min", plateau_patience=0, min_delta=0.1)
    assert learning_rates(plan, [1.0, 0.95])[-1] != [1e-3]
    assert learning_rates(plan, [1.0, 0.85])[-1] == [1e-3]


def test_the_wave_is_torchs() -> None:
    plan = TrainingPlan(max_epochs=9, schedule="cosine", warmup_epochs=3, warmup_start=0.1, min_lr=1e-3)
    ours, theirs = (torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5) for _ in range(2))
    schedule, num_batches = make_schedule(ours, plan), 4
    assert isinstance(schedule, CosineSchedule)
    warmup = torch.optim.lr_scheduler.LinearLR(theirs, start_factor=0.1, total_iters=3 * num_batches)
    wave = torch.optim.lr_scheduler.CosineAnnealingLR(theirs, T_max=6 * num_batches, eta_min=1e-3)
    both = torch.optim.lr_scheduler.SequentialLR(theirs, [warmup, wave], milestones=[3 * num_batches])
    for step in range(9 * num_batches):
        schedule.advance(step / num_batches)
        assert ours.param_groups[0]["lr"] == pytest.approx(theirs.param_groups[0]["lr"])
        theirs.step()
        both.step()


RECORD = {"epoch": 2, "validation/mse": 0.5, "train/loss": 0.25, "learning_rate": 1e-3, "seconds": 1.5}


def test_a_log_file_has_lines_and_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with BarReporter("mse") as reporter:
        reporter.begin_epoch(2, 10, 3)
        reporter.step(0.5)
        reporter.end_epoch(RECORD, is_best=True)
    assert capsys.readouterr().err == "epoch   2  mse   0.5000 *  train loss 2.500e-01  lr 1.0e-03  1.5 s\n"
    with BarReporter("mse", is_quiet=True) as quiet:
        quiet.notify("nothing")
    assert capsys.readouterr().err == ""


def test_a_bar_counts_and_starts_anew_with_another_part() -> None:
    bar = ProgressBar()
    (task,) = bar._bar.tasks
    bar.begin(10, 3, "epoch 1")
    bar.advance()
    assert (task.completed, task.total, task.description, task.visible) == (4, 10, "epoch 1", True)
    bar.advance("epoch 1, loss 0.5")
    assert (task.completed, task.description) == (5, "epoch 1, loss 0.5")
    bar.show(7, 10, "reading")
    bar.show(1, 20, "scoring")
    assert (task.completed, task.total, task.description) == (1, 20, "scoring")
